"""Looks at executed notebooks: no cell wrote to stderr, and Chinese labels are text: python tools/look_alone.py NOTEBOOK …"""

import json
import re
import sys
from pathlib import Path

problems = []
for argument in sys.argv[1:]:
    for cell in json.loads(Path(argument).read_text(encoding="utf-8"))["cells"]:
        for output in cell.get("outputs", []):
            where = f"{argument}, cell {cell['id']}"
            if output.get("name") == "stderr" or output["output_type"] == "error":
                problems.append(f"{where}: {''.join(output.get('text', output.get('evalue', '')))}")
            figure = "".join(output.get("data", {}).get("image/svg+xml", ""))
            labels = (
                re.findall(r"[\"'][^\"'\n]*[\u4e00-\u9fff][^\"'\n]*[\"']", "".join(cell["source"])) if figure else []
            )
            if labels and not re.search(r"<text[^>]*>[^<]*[\u4e00-\u9fff]", figure):
                problems.append(f"{where}: Chinese labels are not text")
print("\n".join(problems) or "no problems")
sys.exit(bool(problems))
