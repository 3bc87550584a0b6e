"""Languages that the model card of a checkpoint lists."""

from pathlib import Path

from voxport.bundle.languages import language_code

CARD = "README.md"
FENCE = "---"  # around the metadata, as model hubs read it


def card_languages(folder: Path) -> set[str]:
    """ISO 639 codes of `language` in the metadata of the card; empty without a readable one."""
    import yaml

    try:
        text = (folder / CARD).read_text(encoding="utf-8-sig")
        start, _, rest = text.partition("\n")
        head = rest.partition(f"\n{FENCE}")[0] if start.strip() == FENCE else ""
        content = yaml.load(head, yaml.BaseLoader)  # texts only: for others the code `no` is the value false
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return set()
    found = content.get("language") if isinstance(content, dict) else None
    names = found if isinstance(found, list) else [found]
    return {code for name in names if isinstance(name, str) and (code := language_code(name))}
