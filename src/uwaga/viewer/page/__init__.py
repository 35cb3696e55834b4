"""Pages: the front end as one script and one style sheet, the shell that a server serves, and a page that is one file."""
