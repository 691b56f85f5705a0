// Questions to the server; an error is the sentence that it answers with.

export async function ask(path, query) {
  const text = query ? String(query) : "";
  return read(await fetch(`/api/runs${path}${text ? `?${text}` : ""}`));
}

export const known = async (path) => read(await fetch(path));

export const post = async (path, content) =>
  read(await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(content) }));

async function read(answer) {
  const content = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
  if (!answer.ok) throw new Error(content.error);
  return content;
}

/** Of several questions under way only the latest is answered. */
export function latest() {
  let asked = 0;
  return async (path, query) => {
    const own = ++asked;
    const content = await ask(path, query);
    return own === asked ? content : null;
  };
}
