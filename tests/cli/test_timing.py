from uwaga.cli.timing import Comparison, compare


def test_sides_run_in_turn_and_the_order_turns_round() -> None:
    calls: list[str] = []
    sides = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    measured = compare(sides, seconds=0.0, least=2, most=2)
    assert measured.rounds == 2
    order = [name for at, name in enumerate(calls) if at == 0 or calls[at - 1] != name]
    assert order == ["a", "b", "a", "b", "a"]  # warm-up of each, then a b, then b a


def test_ratio_is_taken_within_rounds() -> None:
    slow_second_half = Comparison({"a": [1.0, 1.0, 10.0, 10.0], "b": [2.0, 2.0, 20.0, 20.0]})
    assert slow_second_half.ratio("b", to="a") == 2.0
