"""Questions of a page in, replies out: the same for a server, a notebook and a page that is one file."""

from uwaga.viewer.desk.reply import QuestionError, Reply

__all__ = ["Desk", "QuestionError", "Reply"]

from uwaga.viewer.desk.desk import Desk
