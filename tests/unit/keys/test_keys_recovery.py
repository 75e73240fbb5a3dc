from __future__ import annotations

import itertools
import json
import stat
from pathlib import Path

import pytest
from carrying import carries
from shamir_mnemonic import combine_mnemonics, generate_mnemonics
from typer.testing import CliRunner

from sealtrain.base.secret import Secret
from sealtrain.cli import app
from sealtrain.errors import KeyFileInvalid, UsageError
from sealtrain.keys.recovery import join_root, split_root
from sealtrain.keys.uris import root_secret

ROOT = Secret(bytes(range(32)))


def shares_of(root: Secret = ROOT, *, threshold: int = 2, count: int = 3) -> dict[str, str]:
    made = split_root(root, threshold=threshold, count=count)
    return {f"share {number}": case.reveal().decode() for number, case in enumerate(made)}


def test_any_so_many_shares_give_the_secret_back() -> None:
    shares = shares_of(threshold=3, count=4)
    for chosen in itertools.combinations(shares.items(), 3):
        assert join_root(dict(chosen)) == ROOT


def test_another_implementation_of_slip_39_would_read_them() -> None:
    shares = list(shares_of().values())
    assert {len(share.split()) for share in shares} == {33}
    assert combine_mnemonics(shares[1:]) == ROOT.reveal()


def test_words_may_be_written_by_hand() -> None:
    shares = shares_of()
    written = {name: "\n" + words.upper().replace(" ", "  \n") for name, words in shares.items()}
    written.popitem()
    assert join_root(written) == ROOT


def test_too_few_shares_give_nothing() -> None:
    shares = shares_of(threshold=3, count=4)
    for number in (0, 1, 2):
        with pytest.raises(KeyFileInvalid):
            join_root(dict(list(shares.items())[:number]))


def test_shares_of_two_splits_do_not_mix() -> None:
    one, other = shares_of(), shares_of()
    with pytest.raises(KeyFileInvalid, match="b and a"):
        join_root({"a": one["share 0"], "b": other["share 1"]})


def test_a_share_given_twice_counts_once() -> None:
    share = shares_of()["share 0"]
    with pytest.raises(KeyFileInvalid, match="b and a"):
        join_root({"a": share, "b": share})


def test_a_word_that_was_misread_names_its_paper_and_not_its_words() -> None:
    shares = shares_of()
    words = shares["share 0"].split()
    words[20] = "academic" if words[20] != "academic" else "acid"
    with pytest.raises(KeyFileInvalid, match="share 0") as caught:
        join_root({"share 0": " ".join(words), "share 1": shares["share 1"]})
    told = json.dumps(caught.value.to_dict()) + repr(caught.value.__cause__)
    assert not set(shares["share 1"].split()[4:]) & set(told.split())


def test_shares_of_a_shorter_secret_are_refused() -> None:
    (short,) = generate_mnemonics(1, [(2, 2)], bytes(16))
    with pytest.raises(KeyFileInvalid, check=carries(check="share", got="16")):
        join_root({"a": short[0], "b": short[1]})


@pytest.mark.parametrize(("threshold", "count"), [(1, 1), (1, 3), (4, 3), (2, 17), (0, 0)])
def test_a_split_that_protects_nothing_is_refused(threshold: int, count: int) -> None:
    with pytest.raises(UsageError):
        split_root(ROOT, threshold=threshold, count=count)


def test_the_commands_write_files_for_one_reader_and_say_no_secret(tmp_path: Path) -> None:
    kept = tmp_path / "root"
    root = root_secret(f"file:{kept}", create=True)
    out, back = tmp_path / "shares", tmp_path / "back"
    words = ["broker", "root", "split", "--root-secret", f"file:{kept}", "--threshold", "2"]
    made = CliRunner().invoke(app, [*words, "--shares", "3", "--out", str(out), "--json"])
    assert made.exit_code == 0, made.output
    files = sorted(out.iterdir())
    assert [file.name for file in files] == [f"share-{n}-of-3.txt" for n in (1, 2, 3)]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(out.stat().st_mode) == 0o700
    given = [str(files[2]), str(files[0])]
    joined = CliRunner().invoke(
        app, ["broker", "root", "join", *given, "--out", str(back), "--json"]
    )
    assert joined.exit_code == 0, joined.output
    assert root_secret(f"file:{back}") == root
    assert json.loads(joined.stdout)["signing_key"] == json.loads(made.stdout)["signing_key"]
    for said in (made.output, joined.output):
        assert root.reveal().hex() not in said
        assert files[0].read_text().strip() not in said


def test_a_secret_that_must_not_leave_its_provider_is_not_split(tmp_path: Path) -> None:
    words = ["broker", "root", "split", "--root-secret", f"dstack:{tmp_path}/guest.sock"]
    found = CliRunner().invoke(
        app, [*words, "--threshold", "2", "--shares", "3", "--out", str(tmp_path / "shares")]
    )
    assert isinstance(found.exception, UsageError)
    assert not (tmp_path / "shares").exists()
