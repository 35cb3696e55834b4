"""Reads a number as the page writes it in English."""

_DIGITS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")


def number_of(text: str) -> float:
    """The number of "1,234.5" or of a power of ten; NaN for a dash, which stands for a hidden number."""
    text = text.strip().replace("\N{MINUS SIGN}", "-").replace(",", "").translate(_DIGITS)
    return float(text.replace("\N{MULTIPLICATION SIGN}10", "e").replace("\N{EN DASH}", "nan"))
