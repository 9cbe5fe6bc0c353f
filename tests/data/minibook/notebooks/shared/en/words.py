WORDS = {"rows": "rows", "total": "total"}
