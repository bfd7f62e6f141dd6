"""Who may have the file: statuses in distinct words, and where the token goes."""

from __future__ import annotations

import email.utils
import os
import time
from pathlib import Path

import loopback_hub
import pytest
from download_bench import CONTENT, FILE, HASTY, REPO, Bench
from loopback_hub import Fault

from ds4py.errors import Ds4Error, FormatError, ResourceError, UsageError
from ds4py.hub import Patience, hub_from
from ds4py.hub.refusals import retry_after
from ds4py.hub.targets import Wanted

TOKEN = "hf_SecretSecretSecret"


def sentence(bench: Bench, **options: object) -> str:
    with pytest.raises(Ds4Error) as caught:
        bench.fetch(bench.hub(**options))
    text = str(caught.value)
    assert TOKEN not in text and TOKEN not in "".join(bench.said) and FILE not in (bench.names() if bench.folder.exists() else [])
    return text


class TestWords:
    def test_401_without_a_token(self, bench: Bench) -> None:
        bench.shelf.listing_faults = [Fault(status=401, headers={"X-Error-Code": "RepoNotFound"})]
        text = sentence(bench)
        assert "private or gated, or does not exist" in text and "no token was given" in text and "HF_TOKEN" in text

    def test_401_gated_without_a_token(self, bench: Bench) -> None:
        bench.shelf.listing_faults = [Fault(status=401, headers={"X-Error-Code": "GatedRepo"})]
        assert "accept its terms" in sentence(bench)

    def test_401_with_a_bad_token(self, bench: Bench) -> None:
        bench.shelf.listing_faults = [Fault(status=401)]
        text = sentence(bench, token=TOKEN)
        assert "does not accept the token from --token" in text and "mistyped, expired or revoked" in text

    def test_403_gated_with_a_good_token(self, bench: Bench) -> None:
        bench.shelf.faults = [Fault(status=403, headers={"X-Error-Code": "GatedRepo"})]
        text = sentence(bench, token=TOKEN)
        assert "gated or restricted (403)" in text and "its account has no access" in text

    def test_404_repository_and_file(self, bench: Bench) -> None:
        bench.wanted = Wanted("owner/nothing", FILE)
        text = sentence(bench)
        assert "has no repository owner/nothing (404): check the spelling" in text and "private" in text
        bench.wanted = Wanted(REPO, FILE)
        bench.shelf.faults = [Fault(status=404)]
        assert f"has no {FILE} of {REPO} (404)" in sentence(bench)

    def test_every_refusal_has_its_own_words_and_is_asked_once(self, bench: Bench) -> None:
        texts = []
        for status, token in ((401, None), (401, TOKEN), (403, TOKEN), (404, TOKEN), (418, None)):
            bench.shelf.faults, before = [Fault(status=status)], bench.shelf.served
            texts.append(sentence(bench, token=token))
            assert bench.shelf.served == before + 1
        assert len(set(texts)) == len(texts)

    def test_429_waits_as_long_as_it_is_told(self, bench: Bench) -> None:
        bench.shelf.faults = [Fault(status=429, headers={"Retry-After": "1"})]
        begun = time.monotonic()
        bench.fetch()
        assert time.monotonic() - begun >= 1 and bench.path.read_bytes() == CONTENT
        assert any("429 (Too Many Requests); trying again in 1 s" in line for line in bench.said)

    def test_429_of_the_listing(self, bench: Bench) -> None:
        bench.shelf.listing_faults = [Fault(status=429, headers={"Retry-After": "0"})]
        assert bench.fetch().how == "downloaded, its hash is right"

    def test_429_for_hours_is_told_and_not_waited_for(self, bench: Bench) -> None:
        bench.shelf.faults = [Fault(status=429, headers={"Retry-After": "7200"})]
        assert "a pause of 120 minutes" in sentence(bench)

    def test_retry_after_reads_numbers_and_dates(self) -> None:
        assert retry_after("17") == 17 and retry_after(None) is None and retry_after("soon") is None
        date = email.utils.formatdate(time.time() + 100, usegmt=True)
        assert 95 < (retry_after(date) or 0) < 101
        assert retry_after(email.utils.formatdate(time.time() - 100, usegmt=True)) == 0

    @pytest.mark.parametrize("status", [500, 502, 503, 504, 408])
    def test_errors_that_may_pass(self, bench: Bench, status: int) -> None:
        bench.shelf.faults = [Fault(status=status), Fault(cut=1000), Fault(status=status), Fault(status=status)]
        bench.shelf.listing_faults = [Fault(status=status)]
        bench.fetch()
        assert bench.path.read_bytes() == CONTENT

    def test_errors_that_do_not_pass(self, bench: Bench) -> None:
        bench.shelf.listing_faults = [Fault(status=500)] * 50
        assert "500 (Internal Server Error), 4 times in a row" in sentence(bench)

    def test_nobody_is_there(self, bench: Bench) -> None:
        assert "cannot be reached" in sentence(bench) if _gone(bench) else False

    @pytest.mark.parametrize("page", [b"<html>", b"[]", b'{"siblings": 7}', b"\xff\xfe", b'{"siblings": [{"rfilename": 5}]}'])
    def test_a_listing_that_is_none(self, bench: Bench, page: bytes) -> None:
        bench.shelf.listing_faults = [Fault(status=200, content=page)]
        with pytest.raises(FormatError):
            bench.fetch()

    @pytest.mark.parametrize("path", ["../../evil-Q4_K_M.gguf", "a/../b.gguf", ".hidden.gguf", "a\\b.gguf", "new\nline.gguf"])
    def test_names_that_lead_elsewhere(self, bench: Bench, path: str, tmp_path: Path) -> None:
        bench.shelf.put("owner/evil", path, b"boo")
        bench.wanted = Wanted("owner/evil", "*.gguf")
        try:
            done = bench.fetch()
        except Ds4Error:
            assert not list(tmp_path.rglob("*.gguf"))
            return
        assert done.path.parent == bench.folder and done.path.resolve().parent == bench.folder.resolve()


def _gone(bench: Bench) -> bool:
    with loopback_hub.running() as gone:
        bench.shelf = gone
    return True


class TestToken:
    def test_it_goes_to_the_hub_and_not_to_the_storage(self, bench: Bench) -> None:
        bench.shelf.token, bench.shelf.redirect = TOKEN, True
        bench.shelf.faults = [Fault(cut=1000)]
        bench.fetch(bench.hub(token=TOKEN))
        assert bench.path.read_bytes() == CONTENT
        storage = int(bench.shelf.storage.rpartition(":")[2])
        seen = {request.port == storage: "authorization" in request.headers for request in bench.shelf.requests}
        assert seen == {False: True, True: False}
        told = [value for request in bench.shelf.requests if request.port == storage for value in request.headers.values()]
        assert told and not any(TOKEN in value for value in told)

    def test_order(self, bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        assert bench.hub().token is None
        (tmp_path / "hf-home").mkdir()
        (tmp_path / "hf-home" / "token").write_text("from-the-file\n")
        assert (bench.hub().token, bench.hub().token_source) == ("from-the-file", str(tmp_path / "hf-home" / "token"))
        monkeypatch.setenv("HF_TOKEN", "from-the-environment")
        assert (bench.hub().token, bench.hub().token_source) == ("from-the-environment", "HF_TOKEN")
        assert bench.hub(token="given").token == "given"
        assert bench.hub(token="").token is None

    def test_the_default_file(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / ".cache" / "huggingface").mkdir(parents=True)
        (tmp_path / ".cache" / "huggingface" / "token").write_text("mine")
        assert hub_from({"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / ".cache")}).token == "mine"

    def test_it_is_in_no_repr(self, bench: Bench) -> None:
        assert TOKEN not in repr(bench.hub(token=TOKEN))

    @pytest.mark.parametrize("token", ["two words", "new\nline", "h\u00e9", "tab\tbed"])
    def test_one_that_no_header_can_carry(self, bench: Bench, token: str) -> None:
        with pytest.raises(UsageError) as caught:
            bench.hub(token=token)
        assert token not in str(caught.value)

    def test_storage_that_refuses_is_asked_by_a_fresh_address(self, bench: Bench) -> None:
        """Signed addresses expire: 403 of the storage host is not 403 of the hub."""
        bench.shelf.redirect = True
        bench.shelf.faults = [Fault(cut=1000), Fault(status=403)]
        bench.fetch()
        assert bench.path.read_bytes() == CONTENT
        bench.path.unlink()
        bench.shelf.faults = [Fault(status=403)] * 10
        text = sentence(bench)
        assert "which stores the file, answered 403" in text and "secret-signature" not in text


class TestPlaces:
    @pytest.mark.parametrize("location", ["", "ftp://x/y", "http://[", "http://h:99999999/", "file:///etc/passwd"])
    def test_redirects_to_nowhere(self, bench: Bench, location: str) -> None:
        bench.shelf.faults = [Fault(status=302, headers={"Location": location})]
        with pytest.raises(Ds4Error):
            bench.fetch()
        assert FILE not in bench.names()

    def test_redirects_in_a_circle(self, bench: Bench) -> None:
        bench.shelf.faults = [Fault(status=307, headers={"Location": f"/{REPO}/resolve/main/{FILE}"})] * 20
        with pytest.raises(FormatError, match="in a circle"):
            bench.fetch()

    @pytest.mark.parametrize("endpoint", ["nonsense", "ftp://host", "http://", "http://host:x", "file:///etc"])
    def test_an_endpoint_that_is_none(self, endpoint: str) -> None:
        with pytest.raises(UsageError, match="HF_ENDPOINT"):
            hub_from({"HF_ENDPOINT": endpoint})

    def test_the_mirror_of_the_environment(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_ENDPOINT", bench.shelf.endpoint + "/")
        bench.fetch(hub_from(os.environ, patience=HASTY))
        assert bench.path.read_bytes() == CONTENT

    def test_offline(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        with pytest.raises(ResourceError, match="HF_HUB_OFFLINE is set"):
            bench.fetch(bench.hub())
        assert bench.shelf.requests == []

    def test_patience_has_defaults_for_people(self) -> None:
        assert Patience().timeout == 30 and Patience().tries >= 5
