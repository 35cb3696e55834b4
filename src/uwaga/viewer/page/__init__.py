"""The page: the front end bundled into one script and one style sheet, its HTML, and snapshots, pages that are one file."""
