"""The error of one document among many."""


class DocumentError(ValueError):
    """A document that cannot be encoded.

    Attributes:
        document: its number among the texts given, from 0.
        reason: what is wrong with it, in words that end a sentence "document 3 ...".
    """

    def __init__(self, document: int, reason: str) -> None:
        super().__init__(f"TextEncoder: document {document} {reason}")
        self.document, self.reason = document, reason
