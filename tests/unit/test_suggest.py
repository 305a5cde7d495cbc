from __future__ import annotations

from longwatch.core.suggest import closest_name, did_you_mean


def test_the_most_alike_is_found_whatever_its_case() -> None:
    assert "Worker" == closest_name("wroker", ["web", "Worker", "broker-of-work"])


def test_a_word_like_no_other_has_none() -> None:
    assert closest_name("zzz", ["web", "worker"]) is None
    assert "look again" == did_you_mean("zzz", ["web"], default="look again")


def test_the_question_names_it() -> None:
    assert "did you mean web?" == did_you_mean("wen", iter(["web"]))


def test_more_likeness_can_be_asked_for() -> None:
    assert "wbxe" == closest_name("wxbe", ["wbxe"], cutoff=0.5)
    assert closest_name("wxbe", ["wbxe"], cutoff=0.9) is None
