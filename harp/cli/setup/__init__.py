"""``harp setup``: prepare a host for HARP, and undo that.

`docs/use/deploy.md` says what is changed and why. `choose` picks the interfaces, `targets` lists
the wanted values, `knobs` reads and sets them, `state` saves the previous values.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click

from harp.cli.setup import choose, state
from harp.cli.setup.host_access import Host, Refused
from harp.cli.setup.knobs import Knob, knob
from harp.cli.setup.targets import Wishes, plan

if TYPE_CHECKING:
    from collections.abc import Sequence

ROUNDS = 3
"""Targets are listed again after the changes: more queues bring more interrupts, and where the
kernel cannot give pages of 1 GiB, smaller ones are tried."""
Target = tuple[Knob, "str | None"]


@click.command()
@click.option("--nics", "names", metavar="NAMES", help="Interfaces, like eth1..eth8 or "
              "eth1,eth3.  [all that have an address and do not carry the default route]")
@click.option("--mtu", type=click.IntRange(576, 65535), help="Largest packet in bytes; "
              "choose what your network supports.  [unchanged]")
@click.option("--queues", type=click.IntRange(1), help="Queues per card.  [one per GPU "
              "that the card serves; without GPUs unchanged]")
@click.option("--hugepages", "pages_gib", type=click.IntRange(0), metavar="GIB",
              help="Huge pages in total.  [10, and 5 per card]")
@click.option("--dry-run", is_flag=True, help="Only show the commands; needs no privileges.")
@click.option("--undo", is_flag=True, help="Restore the values from before the first run.")
@click.pass_obj
def setup(host: Host | None, *, names: str | None, mtu: int | None, queues: int | None,
          pages_gib: int | None, dry_run: bool, undo: bool) -> int:
    """Prepare this host for HARP; each command is shown before it runs.

    Sets huge pages, queues, rings, interrupts, socket memory and /etc/harp/harp.conf. Values that
    are right already stay untouched.
    """
    host = host or Host()
    if undo and any(wish is not None for wish in (names, mtu, queues, pages_gib)):
        raise click.UsageError("--undo restores everything; only --dry-run may go with it")
    if not dry_run and not host.may_change():
        raise click.ClickException("only root may change this host; --dry-run shows the commands")
    try:
        with contextlib.nullcontext() if dry_run else host.alone():
            if undo:
                return _undo(host, dry_run=dry_run)
            nics = choose.default(host)[0] if names is None else choose.named(host, names)
            if nics:
                return _setup(host, Wishes(nics, mtu, queues, pages_gib), dry_run=dry_run)
            return _show_others(host, mtu, queues, pages_gib, dry_run=dry_run)
    except Refused as error:  # a knob's own refusal is printed beside it
        raise click.ClickException(str(error)) from None


def _show_others(host: Host, mtu: int | None, queues: int | None, pages_gib: int | None, *,
                 dry_run: bool) -> int:
    """Show what would be done if the cards were named that are not taken by default."""
    _, able, why = choose.default(host)
    sentence = f"name the NICs by --nics; none is chosen by default: {why}"
    if not dry_run:
        raise click.UsageError(sentence)
    click.echo(f"# {sentence}")
    if not able:
        return 0
    click.echo("# With them named it would do this, and their links may go down for a moment:")
    code = _setup(host, Wishes(able, mtu, queues, pages_gib), dry_run=True)
    wishes = {"--mtu": mtu, "--queues": queues, "--hugepages": pages_gib}
    click.echo(" ".join(["# next: harp setup --nics", ",".join(nic.name for nic in able), *(
        f"{option} {value}" for option, value in wishes.items() if value is not None)]))
    return code


def _setup(host: Host, wishes: Wishes, *, dry_run: bool) -> int:
    tried: dict[str, str | None] = {}
    shown_remarks: set[str] = set()
    refused: set[str] = set()
    without: set[str] = set()
    for _ in range(ROUNDS):
        made = plan(host, wishes, set(tried))
        for remark in made.remarks:
            if remark not in shown_remarks:
                click.echo(f"# {remark}")
        shown_remarks |= set(made.remarks)
        todo = [(one, value) for one, value in made.targets
                if one.differs(host, value) and tried.get(one.key, "") != value]
        if not todo:
            break
        tried |= {one.key: value for one, value in todo}
        for one in _turn(host, todo, dry_run=dry_run, remember=True):
            (without if one.optional else refused).add(one.key)
        if dry_run:
            break
    _sum_up(len(tried.keys() - without), len(refused), dry_run=dry_run)
    return 1 if refused else 0


def _undo(host: Host, *, dry_run: bool) -> int:
    before = state.load(host)
    if not before:
        click.echo("# nothing to undo: harp setup has changed nothing here")
        return 0
    targets = [(knob(key), value) for key, value in reversed(before.items())]
    targets.sort(key=lambda target: target[0].kind == "irq")  # queues take and bring interrupts
    tried: set[str] = set()
    refused: set[str] = set()
    for _ in range(1 if dry_run else ROUNDS):
        todo = [(one, value) for one, value in targets
                if one.key not in refused and one.differs(host, value)]
        if not todo:
            break
        tried |= {one.key for one, _ in todo}
        refused |= {one.key for one in _turn(host, todo, dry_run=dry_run, remember=False)}
    _sum_up(len(tried), len(refused), dry_run=dry_run, undo=True)
    if not dry_run and not refused:
        state.forget(host)
    return 1 if refused else 0


def _turn(host: Host, todo: Sequence[Target], *, dry_run: bool, remember: bool) -> list[Knob]:
    """Show and set each; return those that did not get their value."""
    for tool in sorted({one.tool for one, _ in todo if one.tool and not host.has(one.tool)}):
        sentence = f"{tool} is not installed: {choose.PACKAGES[tool]}"
        if not dry_run:
            raise click.ClickException(sentence)
        click.echo(f"# {sentence}")
    if remember and not dry_run:
        state.remember(host, {one.key: one.read(host) for one, _ in todo})
    return [one for one, value in todo  # some came about or went with those before them
            if one.differs(host, value) and not _turn_one(host, one, value, dry_run=dry_run)]


def _turn_one(host: Host, one: Knob, value: str | None, *, dry_run: bool) -> bool:
    shown = one.shown(host, value)  # a file that a user has written may hold any byte
    click.echo(shown.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
    if dry_run:
        return True
    try:
        one.set(host, value)
    except Refused as error:
        click.echo(f"#   refused: {error}{'; HARP runs without it' if one.optional else ''}")
        return False
    if (now := one.read(host)) != value:
        click.echo(f"#   it is {now} now: {one.short}")
    return now == value


def _sum_up(changes: int, refused: int, *, dry_run: bool, undo: bool = False) -> None:
    if not changes:
        click.echo("# nothing to change")
    elif dry_run:
        click.echo("# nothing was changed: --dry-run")
    elif refused:
        click.echo(f"# {refused} of {changes} changes were refused; the others were made" + (
            "" if undo else ", and harp setup --undo reverts them"))
    else:
        click.echo(f"# {changes} change{'s' if changes > 1 else ''} made" + (
            ": everything is restored" if undo else "; harp setup --undo reverts them"))


__all__ = ["setup"]
