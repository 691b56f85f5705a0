"""The template under Atoll's contract, and what its second buffer is worth."""

from atoll_two_level_buffer import TEMPLATE

from atoll.testing import check_chip_template


def test_the_contract() -> None:
    check_chip_template(TEMPLATE)
