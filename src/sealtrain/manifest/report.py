"""The report of a run for an auditor to read, print and file: a self-contained HTML page.

The page loads nothing and shows no value as markup: its policy forbids every request, names its one
style and its one script by hash, and all text passes through ``markup.tag``. The script is the
second verifier (``verify/``): it checks the manifest and the trust file that lie in the page, in
the reader's browser. A refused manifest is shown under a refusal banner that says that its contents
are claims only.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from sealtrain.attest.registry import TEES
from sealtrain.base.canonical import canonical_json
from sealtrain.base.clock import to_rfc3339
from sealtrain.base.encoding import to_base64
from sealtrain.base.files import atomic_write
from sealtrain.base.version import VERSION
from sealtrain.manifest.flow import draw_flow
from sealtrain.manifest.joint_sections import parties
from sealtrain.manifest.limits import chain_is_open, list_skipped
from sealtrain.manifest.markup import Html, Part, join, tag
from sealtrain.manifest.plain_words import in_plain_words, release_matrix
from sealtrain.manifest.predicate import SIMULATED_MARKER
from sealtrain.manifest.second_verifier import hash_for_policy, join_script
from sealtrain.manifest.sections import (
    BaseList,
    approvals,
    base_list,
    datasets,
    evidence,
    outputs,
    privacy,
    summary,
    timeline,
    training,
    what_ran,
)
from sealtrain.manifest.verify import Check, Report

_MARKS = {"passed": "✓", "failed": "✗", "not-done": "·"}


def render(report: Report, base_files: BaseList | None = None) -> str:
    """The page as text, UTF-8 when written.

    Args:
        report: From ``manifest.verify.examine``, accepted or not.
        base_files: What became of each file of the base model, from the opened model; ``None``
            where it was not opened.
    """
    title = "Training run report"
    body: list[Part] = [tag("p", "sealtrain run report", class_="kicker"), _heading(report)]
    if report.simulated:
        body.append(_warn_of_simulation())
    body.append(_outcome(report))
    if report.manifest is not None:
        predicate, facts = report.manifest.predicate, report.facts
        body += [
            in_plain_words(predicate, facts),
            draw_flow(predicate, facts),
            summary(predicate, facts),
            training(predicate, facts),
            privacy(predicate),
            approvals(predicate, facts),
            datasets(facts),
            parties(predicate, facts, report.guests),
            what_ran(predicate, facts),
            evidence(predicate, facts),
            release_matrix(facts),
            timeline(predicate, facts),
            outputs(report.manifest),
            None if base_files is None else base_list(base_files),
        ]
    body += [_checks(report), _self_check(report), _limits(report), _footer(report)]
    style, script = Html(_own("look.css") + _own("report.css")), Html(join_script())
    policy = (
        f"default-src 'none'; script-src '{hash_for_policy(script)}'; "
        f"style-src '{hash_for_policy(style)}'; base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        tag("style", style),
    )
    page = tag("html", head, tag("body", tag("main", *body), tag("script", script)), lang="en")
    return f"<!doctype html>\n{page}\n"


def write_report(report: Report, out: Path, base_files: BaseList | None = None) -> None:
    """Write the page (0600), whole or not at all; an earlier one is replaced.

    Args:
        report: As for ``render``.
        out: HTML file.
        base_files: As for ``render``.
    """
    atomic_write(out, render(report, base_files).encode(), mode=0o600, overwrite=True)


def _own(name: str) -> Html:
    text = files("sealtrain.manifest").joinpath(name).read_text("utf-8")
    return Html(text)  # sealtrain's own file, without values


def _self_check(report: Report) -> Html:
    """What the script checks, and where it says what it found."""
    trust = canonical_json(report.trust.to_dict())
    return tag(
        "section",
        tag("h2", "Checked again by this page"),
        tag(
            "p",
            "Not checked by this page: its script did not run. This is not a pass.",
            id="self-verdict",
            role="status",
        ),
        tag(
            "p",
            "A second verifier in this page checks the manifest and the trust file that lie in it, "
            "in your browser and offline, at the time of your clock. A forged page can say "
            "anything: to rely on it, drop both into your own copy of the verifier, or run "
            "sealtrain verify.",
            class_="soft",
        ),
        tag("ul", id="self-rows", class_="checks"),
        tag("div", to_base64(report.data), id="self-manifest", hidden="hidden"),
        tag("div", to_base64(trust), id="self-trust", hidden="hidden"),
        id="self-check",
    )


def _heading(report: Report) -> Html:
    if report.manifest is None:
        return tag("h1", "Unreadable manifest")
    lock = report.facts.lock
    name = "Unverified run" if lock is None else lock.recipe.name
    run = report.manifest.predicate.run
    lines: list[Part] = [tag("h1", name)]
    if lock is not None and lock.recipe.description:
        lines.append(tag("p", lock.recipe.description))
    lines.append(
        tag("p", "Run ", tag("code", run.run_id), f", finished {run.finished_at}", class_="soft")
    )
    return join(lines)


def _warn_of_simulation() -> Html:
    return tag(
        "div",
        tag("strong", SIMULATED_MARKER),
        tag(
            "span",
            "A rehearsal: the evidence comes from software and proves nothing about hardware.",
        ),
        class_="simulated",
        role="note",
    )


def _outcome(report: Report) -> Html:
    passed = sum(check.outcome == "passed" for check in report.checks)
    if report.refusal is None:
        undone = len(report.checks) - passed
        unasked = ", ".join(report.facts.unasked or ())
        left = list_skipped(report.trust, artefacts_checked=True)
        chain = chain_is_open(report.trust, report.facts.receipts or ())
        kind = "open" if report.simulated or left or chain else "accepted"
        return tag(
            "section",
            tag("p", "✓ Verified", class_="word"),
            tag(
                "p",
                f"{passed} of {len(report.checks)} checks passed against your trust file"
                + (f"; {undone} left undone as you asked." if undone else "."),
            ),
            tag("p", "Simulated: nothing here is proven by hardware.")
            if report.simulated
            else None,
            *(tag("p", sentence) for sentence in left),
            tag("p", f"Data of {unasked} was used without approval.") if unasked else None,
            class_=f"verdict {kind}",
        )
    error = report.refusal
    return tag(
        "section",
        tag("p", "✗ Refused", class_="word"),
        tag("p", tag("code", error.code), f" {error}"),
        tag("p", error.hint) if error.hint else None,
        tag("p", "What follows is only what the file claims. Do not rely on it.")
        if report.manifest is not None
        else None,
        class_="verdict refused",
    )


def _checks(report: Report) -> Html:
    return tag(
        "section",
        tag("h2", "Every check"),
        tag("ul", *(_check(check) for check in report.checks), class_="checks"),
    )


def _check(check: Check) -> Html:
    hint = None if check.error is None else check.error.hint
    return tag(
        "li",
        tag("span", _MARKS[check.outcome], class_="mark", aria_hidden="true"),
        tag("span", check.title),
        tag(
            "span",
            "not done: " if check.outcome == "not-done" else None,
            check.detail,
            tag("span", hint, class_="hint") if hint else None,
            class_="detail",
        ),
        class_=check.outcome,
    )


def _limits(report: Report) -> Html | None:
    if not report.limits:
        return None
    return tag(
        "section",
        tag("h2", "What this does not prove"),
        tag("ul", *(tag("li", limit) for limit in report.limits), class_="limits"),
    )


_ROOTS = {tee.vendor: tee.vendor_root for tee in TEES}


def _footer(report: Report) -> Html:
    trust = report.trust
    root = _ROOTS.get(str(trust.appraisal.root), "a simulator's root")
    return tag(
        "footer",
        tag("p", "Manifest SHA-256 ", tag("code", report.digest)),
        tag(
            "p",
            f"Verified {to_rfc3339(report.now)} by sealtrain {VERSION}, offline, "
            f"trusting {root}, consortium ",
            tag("code", trust.consortium_id[:16] + "…"),
            ", recipe ",
            tag("code", trust.recipe_hash[:16] + "…"),
            ".",
        ),
        tag(
            "p", "This page is a rendering. What is signed is the manifest: verify that, not this."
        ),
    )
