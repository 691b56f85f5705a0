"""Why a searched chip: its neighbours, and existing devices changed into it part by part."""
