"""report.py FILE [TEXT...]: a page of `ridge report` is balanced HTML that loads nothing from elsewhere, its images are well-formed
SVG, and each TEXT stands in it; a .svg file is well-formed SVG."""
import base64
import html.parser
import sys
import xml.etree.ElementTree as xml

path, wanted = sys.argv[1], sys.argv[2:]
text = open(path, encoding="utf-8").read()


def svg(source):
    root = xml.fromstring(source)
    assert root.tag.endswith("}svg"), root.tag
    assert "viewBox" in root.attrib, "no viewBox: it would not shrink on a phone"
    assert sum(1 for e in root.iter() if e.tag.endswith(("path", "polygon", "polyline", "rect", "use"))) > 5, "nothing is drawn"


class Page(html.parser.HTMLParser):
    void = {"meta", "img", "br"}

    def __init__(self):
        super().__init__()
        self.open, self.said, self.images = [], [], 0

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        assert not attributes.get("href") and tag not in ("script", "link"), f"<{tag}> loads something"
        if tag == "img":
            kind, data = attributes["src"].split(",", 1)
            assert kind == "data:image/svg+xml;base64" and attributes["alt"], kind
            svg(base64.b64decode(data, validate=True).decode())
            self.images += 1
            self.said.append(attributes["alt"])
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.void:
            assert self.open and self.open.pop() == tag, f"</{tag}> at {self.getpos()}"

    def handle_data(self, data):
        self.said.append(data)


if path.endswith(".svg"):
    svg(text)
else:
    page = Page()
    page.feed(text)
    page.close()
    assert not page.open, page.open
    assert page.images > 3, page.images
    said = "\n".join(page.said)
    for t in wanted:
        assert t in said, f"'{t}' is not on the page"
    print(f"report: {page.images} images, {len(text)} bytes")
