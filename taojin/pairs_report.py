"""What `taojin tokenize` and `taojin merge` print when they are done."""

from taojin.report import REASON_WORDS, number, print_json, share
from taojin.tokenizing import Tokenized

LEFT_OUT_WORDS = {
    **REASON_WORDS,
    "not_kept": "removed by the decisions",
    "bad_conversation": "no conversation that the template takes",
}
SHOWN = 12
WIDEST = 40


def print_tokenized(result: Tokenized, *, as_json: bool) -> None:
    if as_json:
        names = [pair["name"] for pair in result.manifest["pairs"]]
        where = {"folder": result.folder.uri, "pairs": names, "work": result.work.uri}
        facts = {"dtype": result.manifest["dtype"], "tokenizer": result.manifest.get("tokenizer")}
        print_json({**result.manifest["counts"], **facts, **where, "warnings": result.warnings})
        return
    for line in tokenized_lines(result):
        print(line)


def tokenized_lines(result: Tokenized) -> list[str]:
    """A row per reason, per pair and per language, then where everything lies."""
    manifest, counts = result.manifest, result.manifest["counts"]
    rows: list[tuple[str, int, str]] = []
    if "read" in counts:
        rows.append(("documents in", counts["read"], f"{counts['text_bytes'] / 1e6:,.1f} MB of text encoded"))
        rows += [(name, -count, LEFT_OUT_WORDS.get(name, "")) for name, count in counts["left_out"].items()]
    empty = f", {number(counts['empty'], 'empty one')}" if counts["empty"] else ""
    rows.append(("documents", counts["documents"], f"{counts['tokens']:,} tokens, {manifest['dtype']}{empty}"))
    width = max(len(row[0]) for row in rows)
    digits = max(len(f"{row[1]:,}") for row in rows)
    lines = [f"{name:<{width}}  {count:>{digits},}  {note}" for name, count, note in rows]
    for what in ("by_language", "by_source"):
        found = sorted(counts.get(what, {}).items(), key=lambda item: (-item[1]["tokens"], item[0]))
        if found:
            lines.append(what.replace("_", " "))
        for name, entry in found[:SHOWN]:
            of_all = share(entry["tokens"], counts["tokens"])
            lines.append(
                f"  {in_line(name):<24} {entry['tokens']:>15,} tokens {of_all:>7}  {entry['documents']:,} documents"
            )
        if len(found) > SHOWN:
            lines.append(f"  and {len(found) - SHOWN} more, in the manifest")
    lines.append("pairs")
    lines += [
        f"  {in_line(pair['name']):<24} {pair['tokens']:>15,} tokens          {pair['documents']:,} documents"
        for pair in manifest["pairs"][:SHOWN]
    ]
    if len(manifest["pairs"]) > SHOWN:
        lines.append(f"  and {len(manifest['pairs']) - SHOWN} more, in the manifest")
    if counts.get("repaired"):
        lines.append(f"{number(counts['repaired'], 'document')} repaired")
    problems = counts.get("problems", [])
    lines += [f"left out: {problem}" for problem in problems[:SHOWN]]
    unnamed = sum(counts.get("left_out", {}).values()) - counts.get("left_out", {}).get("not_kept", 0)
    if problems and unnamed > SHOWN:
        lines.append(f"left out: and {unnamed - min(SHOWN, len(problems)):,} more; the manifest names up to 20 of them")
    lines += [f"left out: {path}: {why}" for path, why in manifest.get("unreadable", [])[:SHOWN]]
    lines += [f"warning: {warning}" for warning in result.warnings]
    lines.append(f"output  {result.folder.uri}/{result.stem}.*")
    lines.append(f"work    {result.work.uri}")
    return lines


def in_line(name: str) -> str:
    """A name as a table can hold it: without control characters, shortened."""
    plain = "".join(character if character.isprintable() else "\ufffd" for character in name) or "(none)"
    return plain if len(plain) <= WIDEST else f"{plain[: WIDEST - 1]}…"
