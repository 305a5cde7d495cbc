from __future__ import annotations

from longwatch.core.nearest import did_you_mean, nearest


def test_the_most_alike_is_found_whatever_its_case() -> None:
    assert "Worker" == nearest("wroker", ["web", "Worker", "broker-of-work"])


def test_a_word_like_no_other_has_none() -> None:
    assert nearest("zzz", ["web", "worker"]) is None
    assert "look again" == did_you_mean("zzz", ["web"], otherwise="look again")


def test_the_question_names_it() -> None:
    assert "did you mean web?" == did_you_mean("wen", iter(["web"]))


def test_more_likeness_can_be_asked_for() -> None:
    assert "wbxe" == nearest("wxbe", ["wbxe"], likeness=0.5)
    assert nearest("wxbe", ["wbxe"], likeness=0.9) is None
