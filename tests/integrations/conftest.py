collect_ignore = [
    "transformers_suite_cases.py"
]  # run by transformers_suite.py, which says where transformers' tests are
