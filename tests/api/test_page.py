# SPDX-License-Identifier: Apache-2.0
"""The pages as the program serves them: complete, small, relative, guarded. What they do in a browser is tests/page's."""
import gzip
import re

import pytest
from ternlib import Server

FIRST_LOAD_BYTES = 60 * 1000
PAGES = ("/", "/dashboard")


@pytest.fixture(scope="module", autouse=True)
def built(server):
    r = server.get("/")
    if r.status == 404 and b"built without Node.js" in r.body:
        pytest.skip("this tern was built without the page")


def fetch(server, path, **headers):
    return server.get(path, headers={"Accept-Encoding": "gzip", **headers})


def links(html):
    return re.findall(r'(?:href|src)="([^"]*)"', html)


@pytest.mark.parametrize("page", PAGES)
def test_the_first_load_is_small_and_complete(server, page):
    r = fetch(server, page)
    assert r.status == 200 and r.headers["content-encoding"] == "gzip"
    total, html = len(r.body), gzip.decompress(r.body).decode()
    used = links(html)
    assert any(u.endswith(".js") for u in used) and any(u.endswith(".css") for u in used)
    seen = set()
    while used:
        name = used.pop()
        if name in seen:
            continue
        seen.add(name)
        r = fetch(server, "/" + name)
        assert r.status == 200, name
        total += len(r.body)
        if name.endswith(".js"):  # modules that it imports at once, not those it may ask for later
            text = gzip.decompress(r.body).decode() if "content-encoding" in r.headers else r.body.decode()
            used += ["assets/" + m for m in re.findall(r'(?:from|import)"\./([^"]+)"', text)]
    assert total <= FIRST_LOAD_BYTES, total


@pytest.mark.parametrize("page", PAGES)
def test_every_link_is_relative_and_nothing_is_inline(server, page):
    html = server.get(page).body.decode()
    assert links(html) and not [u for u in links(html) if u.startswith("/") or ":" in u]
    assert not re.search(r"<script(?![^>]* src=)|<style|\son\w+=|\sstyle=", html)


@pytest.mark.parametrize("page", PAGES)
def test_the_policy_is_strict(server, page):
    r = server.get(page)
    policy = dict(p.strip().split(" ", 1) for p in r.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'" and policy["script-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'" and "unsafe" not in r.headers["content-security-policy"]
    assert r.headers["x-content-type-options"] == "nosniff"


def test_plain_and_gzipped_bodies_are_equal(server):
    for path in ("/", *("/" + u for u in links(server.get("/").body.decode()))):
        plain, packed = server.get(path), fetch(server, path)
        body = gzip.decompress(packed.body) if "content-encoding" in packed.headers else packed.body
        assert plain.body == body and "content-encoding" not in plain.headers, path


def test_a_page_that_has_not_changed_is_not_sent_again(server):
    r = server.get("/")
    again = server.get("/", headers={"If-None-Match": r.headers["etag"]})
    assert again.status == 304 and again.body == b""
    asset = server.get("/" + next(u for u in links(r.body.decode()) if u.endswith(".js")))
    assert "immutable" in asset.headers["cache-control"]


def test_the_page_is_there_while_the_model_loads_and_with_a_key_and_under_a_root_path():
    with Server(args=["--api-key", "sk-1", "--root-path", "/tern"], wait=False) as s:
        s.wait_ready()
        assert "Chat page: http://127.0.0.1:" in s.output()
        assert s.get("/").status == s.get("/tern/").status == s.get("/tern/dashboard").status == 200
        assert s.get("/v1/models").status == 401
        assert s.get("/assets/../../etc/passwd").status in (400, 401, 404)


def test_pages_are_not_in_the_description_of_the_api(server):
    paths = server.get("/openapi.json").json["paths"]
    assert "/" not in paths and "/dashboard" not in paths and "/v1/models" in paths
