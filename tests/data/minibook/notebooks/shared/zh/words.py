WORDS = {"rows": "行数", "total": "总和"}
