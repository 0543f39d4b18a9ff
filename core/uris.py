"""Paths and URIs as text. A URI's query (`s3://bucket/x?endpoint_override=…`) belongs to the connection, not to the
path."""


def is_uri(name: str) -> bool:
    return "://" in name


def split_query(name: str) -> tuple[str, str]:
    """(name without a trailing slash, "?query" or ""). A local path may hold a question mark."""
    path, mark, query = name.partition("?") if is_uri(name) else (name, "", "")
    return path.rstrip("/") or path, mark + query


def with_suffix(name: str, suffix: str) -> str:
    """The name with `suffix` appended to its path."""
    path, query = split_query(name)
    return f"{path}{suffix}{query}"


def last_part(name: str) -> str:
    return split_query(name)[0].rsplit("/", 1)[-1]
