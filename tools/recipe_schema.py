"""Write ``spec/schema/recipe.schema.json`` from the code: ``python tools/recipe_schema.py``."""

from __future__ import annotations

import json
from pathlib import Path

from sealtrain.recipe.schema import json_schema

if __name__ == "__main__":
    target = Path(__file__).resolve().parents[1] / "spec" / "schema" / "recipe.schema.json"
    target.write_text(json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n", "utf-8")
