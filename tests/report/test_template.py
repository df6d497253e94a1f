"""Templates escape their values, and raise an error if one is missing."""

import pytest

from unlazy.core.pages import template


def test_text_is_escaped_and_complete(tmp_path):
    page = tmp_path / "own.html"
    page.write_text('{% extends "layout.html" %}{% block main %}<p>{{ text }}</p>{% endblock %}\n')
    html = template.write(tmp_path / "out.html", page, text="<b> & 'c'").read_text()
    assert "<p>&lt;b&gt; &amp; &#39;c&#39;</p>" in html and "color-scheme" in html and html.endswith("</html>\n")
    with pytest.raises(Exception, match="'text' is undefined"):
        template.write(tmp_path / "other.html", page)
    assert not (tmp_path / "other.html").exists()
