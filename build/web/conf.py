"""Sphinx's settings for the site, which `make_site.py` builds.

On GitHub, `GITHUB_REPOSITORY` is the repository, OWNER/NAME: then each page links to its source,
and a notebook to hosts that run it.
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import address  # noqa: E402
import make_site  # noqa: E402

project = html_title = "Distributed TensorFlow, by example"
author = "The maintainers of this collection"
description = (
    "Distributed training with TensorFlow: notebooks that start real clusters, and every scheme "
    "from HogWild! to DiLoCo as a folder that runs."
)
extensions = ["myst_nb", "sphinx_copybutton", "sphinx_book_theme", "sphinxext.opengraph",
              "sphinx_design", "sphinx_reredirects", "mathml"]  # fmt: skip
root_doc = "index"
suppress_warnings = ["myst.header"]  # the glossary's terms are small headings

nb_execution_mode = "off"  # the outputs are committed
myst_enable_extensions = ["dollarmath", "html_image", "colon_fence"]
myst_heading_anchors = 6

html_theme = "sphinx_book_theme"
html_math_renderer = "mathml"
html_static_path, html_favicon = [str(HERE / "static")], str(HERE / "static" / "icon.svg")
html_css_files, html_js_files = ["site.css"], [("site.js", {"defer": "defer"})]
templates_path = [str(HERE / "templates")]
html_additional_pages = {"search": "search.html"}
html_context = {"default_mode": "auto"}
html_copy_source = html_show_sourcelink = html_show_copyright = html_use_index = False
html_theme_options = {"show_navbar_depth": 1, "show_toc_level": 2, "use_download_button": False,
                      "use_fullscreen_button": False, "home_page_in_toc": False,
                      "navbar_persistent": []}  # fmt: skip
copybutton_prompt_text, copybutton_only_copy_prompt_lines = "$ ", True
redirects = {"about": "README.html"} | {  # from where these pages used to be
    str(path.with_name("index")): "README.html"
    for path in make_site.reading_order() if path.name == "README.md" and path.parent.name
}  # fmt: skip

if repository := os.environ.get("GITHUB_REPOSITORY"):
    owner, name = repository.split("/")
    html_baseurl = ogp_site_url = f"https://{owner}.github.io/{name}/"
    html_theme_options |= {
        "repository_url": f"https://github.com/{repository}", "repository_branch": "main",
        "use_repository_button": True, "use_edit_page_button": True, "use_source_button": True,
        "launch_buttons": {"colab_url": "https://colab.research.google.com",
                           "binderhub_url": "https://mybinder.org",
                           "notebook_interface": "jupyterlab"},
    }  # fmt: skip
ogp_image, ogp_image_alt = "_static/preview.png", "Two schemes with a slow worker, as lanes"
ogp_description_length, ogp_social_cards = 130, {"enable": False}


def only_where_it_runs(app, pagename, templatename, context, doctree) -> None:
    """Colab opens one notebook on one machine, which must know where the rest is."""
    together = Path(pagename).parent.name == "Multiple-Workers"
    for group in context.get("header_buttons", []):
        if group.get("label") == "launch-buttons" and (together or address.read() is None):
            group["buttons"] = [each for each in group["buttons"] if each["text"] != "Colab"]


def setup(app) -> None:
    app.connect("html-page-context", only_where_it_runs, priority=900)  # after the theme
