"""Temporal's Web UI as an operator has it: one browser window, and the clicks that people make. Selectors live only here.

Everything waits for what it needs to see, never for time. The methods block: a test calls them in a thread.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from selenium.common.exceptions import (
    ElementClickInterceptedException,
    ElementNotInteractableException,
    NoSuchElementException,
    NoSuchFrameException,
    StaleElementReferenceException,
    TimeoutException,
    WebDriverException,
)
from selenium.webdriver import ActionChains, Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

PATIENCE = 30.0  # seconds for one thing to appear, on a machine that does other things as well
WIDTH, HEIGHT = 1280, 1500
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    f"--window-size={WIDTH},{HEIGHT}",
)
# The page draws itself anew all the time: an element that is gone, moved or covered is looked up again.
_REDRAWN = (
    ElementClickInterceptedException,
    ElementNotInteractableException,
    NoSuchElementException,
    NoSuchFrameException,
    StaleElementReferenceException,
)
_VISIBLE = """return [...document.querySelectorAll(arguments[0])].filter(
    one => one.checkVisibility({visibilityProperty: true}) && one.getClientRects().length)"""

T = TypeVar("T")


def start_browser(chromium: str, driver: str, profile: Path) -> Chrome:
    """A headless Chromium with an empty profile."""
    options = ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    return Chrome(options=options, service=Service(driver))


@dataclass(frozen=True)
class Pane:
    """Markdown of ours as the Web UI rendered it."""

    heading: str
    text: str
    items: list[str]
    links: list[str]


class Page:
    """One window on the Web UI of one server."""

    def __init__(self, browser: Chrome, ui_url: str, *folders: Path) -> None:
        """Pictures go to every one of the folders; that of a failure to the first alone."""
        self.browser = browser
        self._workflows = f"{ui_url}/namespaces/default/workflows"
        self._folders = folders

    def open(self, workflow_id: str) -> None:
        """The page of a workflow; the UI finds its latest run."""
        self.browser.get(f"{self._workflows}/{quote(workflow_id, safe='')}")
        self._until(lambda: self._one("workflow-id-heading").text == workflow_id, f"the page of {workflow_id}")

    def ask_codec(self, codec: str, token: str) -> None:
        """Sign in at a codec, and have the Web UI ask it from now on, as its dialog for a codec server does."""
        self.browser.get(f"{codec.replace('//', f'//anybody:{token}@')}/")
        self._until(lambda: "signed_in" in self._body(), "a codec that lets us in")
        self.browser.get(self._workflows)
        told = {"endpoint": codec, "includeCredentials": True, "overrideRemoteCodecConfiguration": True}
        for name, value in told.items():
            self.browser.execute_script("localStorage.setItem(arguments[0], arguments[1])", name, json.dumps(value))

    def listed(self, query: str, *expected: str) -> list[str]:
        """Follow a link to the list with a query, and wait until these workflows are in it. Returns all in it."""

        def look() -> list[str]:
            rows = [link.text for link in self._seen("td a[href*='/workflows/']")]
            found = [text for text in rows if "/" in text]  # ours have a tenant; the other links are run ids
            if not set(expected) <= set(found):
                self.browser.refresh()  # the list is of an index that comes after the history
            return found if set(expected) <= set(found) else []

        self.browser.get(f"{self._workflows}?query={quote(query)}")
        self._until(lambda: "EffectState" in self._body(), "the filter of the list")
        return self._until(look, f"{expected} in the list", every=1.0)

    def tab(self, name: str, wanted: str) -> str:
        """Click a tab, and wait until the text is on it. Returns all text of the page."""
        self._click(f"{name}-tab")
        return self._until(lambda: wanted in (body := self._body()) and body, f"{wanted!r} on the tab {name}")

    def state(self, wanted: str) -> None:
        """Wait until the workflow is shown as running, completed, …"""
        self._until(lambda: self._one("execution-status").text == wanted.upper(), f"the workflow shown as {wanted}")

    def summary(self) -> Pane:
        """The static summary, as the tab User Metadata shows it."""

        def look() -> Pane | None:
            return pane if (pane := self._pane(0)).text else None

        self._click("user-metadata-tab")
        return self._until(look, "the summary")

    def details(self, *wanted: str) -> Pane:
        """The current details, once they hold these texts. They are a query; the key R asks again."""

        def look() -> Pane | None:
            with suppress(*_REDRAWN):
                if all(text in (pane := self._pane(-1)).text for text in wanted):
                    return pane
            ActionChains(self.browser).send_keys("r").perform()
            return None

        self._click("user-metadata-tab")
        return self._until(look, f"current details with {wanted}", every=0.5)

    def send(self, door: str, name: str, text: str, *, encoding: str = "json/plain") -> str:
        """Send a signal or an update by its dialog. Returns what the dialog complains about; "" when it closed."""
        self._click_first("button[aria-controls='workflow-actions']")
        self._click(f"{door}-button")
        dialog = self._until(lambda: self._one(f"{door}-confirmation-modal"), f"the dialog of a {door}")
        self._choose(door, name)
        box = dialog.find_element(By.CSS_SELECTOR, "[role=textbox]")
        box.click()
        box.send_keys(Keys.CONTROL, "a")  # it remembers what was typed before
        box.send_keys(Keys.DELETE, text)
        # Out of the box before the click: the UI then reformats the JSON, the dialog grows, and the button moves away
        # from under the pointer. (A person has to click twice.)
        self.browser.execute_script("arguments[0].blur()", box)
        self._check_typed(box, text)
        if encoding != "json/plain":
            dialog.find_element(By.CSS_SELECTOR, f"[type=radio][value='{encoding}']").click()
        self._click("confirm-modal-button")
        complaint = self._until(self._complaint, f"an answer to the {door} {name} with {text!r}")
        # "Workflow signaled." stays for three seconds; sending again while it does hangs the dialog (UI 2.54.1).
        self._until(self._no_toast, "end of the toasts")
        return complaint

    def cancel_dialog(self) -> None:
        """Close the dialog that is open."""
        self._click("cancel-modal-button")
        self._until(lambda: not self._seen("dialog"), "the dialog closed")

    def picture(self, name: str) -> None:
        """What is on the screen now, as `name`.png."""
        for folder in self._folders:
            folder.mkdir(parents=True, exist_ok=True)
            assert self.browser.save_screenshot(str(folder / f"{name}.png"))

    def _choose(self, door: str, name: str) -> None:
        def option() -> WebElement | None:
            options = self._seen("dialog [role=option]")
            return next((one for one in options if one.text.split("\n")[0] == name), None)

        self._click(f"{door}-select-button")
        self._until(option, f"{name} in the list of the dialog").click()
        shown = f"[data-testid='{door}-select']"
        self._until(
            lambda: any(one.get_property("value") == name for one in self._seen(shown)), f"{name} chosen in the dialog"
        )

    def _check_typed(self, box: WebElement, text: str) -> None:
        try:
            meant = json.loads(text)
        except ValueError:
            return  # empty or broken on purpose
        self._until(lambda: json.loads(box.text) == meant, f"{text} in the box")

    def _complaint(self) -> str | None:
        """None while the dialog thinks; "" when it is gone."""
        if not self._seen("dialog"):
            return ""
        texts = [alert.text for alert in self._seen("dialog [role=alert]") if alert.text]
        return "\n".join(texts) or None

    def _no_toast(self) -> bool:
        for close in self._seen("button[aria-label='Close']"):
            close.click()
        return not self._seen("button[aria-label='Close']")

    def _pane(self, number: int) -> Pane:
        """Each pane of the tab User Metadata is a frame with rendered markdown."""
        frames = self._seen("iframe")
        if len(frames) < 2:
            raise NoSuchFrameException("the panes of User Metadata")
        self.browser.switch_to.frame(frames[number])
        try:
            main = self.browser.find_element(By.TAG_NAME, "main")
            headings = main.find_elements(By.CSS_SELECTOR, "h1, h2, h3")
            return Pane(
                heading=headings[0].text if headings else "",
                text=main.text,
                items=[item.text for item in main.find_elements(By.TAG_NAME, "li")],
                links=[str(link.get_attribute("href")) for link in main.find_elements(By.TAG_NAME, "a")],
            )
        finally:
            self.browser.switch_to.default_content()

    def _body(self) -> str:
        return self.browser.find_element(By.TAG_NAME, "body").text

    def _seen(self, css: str) -> list[WebElement]:
        """Only what is displayed: the UI keeps a second, hidden copy of most things for narrow windows."""
        found: list[WebElement] = self.browser.execute_script(_VISIBLE, css)  # one question instead of one per element
        return found

    def _one(self, test_id: str) -> WebElement:
        for one in self._seen(f"[data-testid='{test_id}']"):
            return one
        raise NoSuchElementException(test_id)

    def _click(self, test_id: str) -> None:
        self._click_first(f"[data-testid='{test_id}']")

    def _click_first(self, css: str) -> None:
        def click() -> bool:
            for one in self._seen(css):
                if one.is_enabled():
                    one.click()
                    return True
            return False

        self._until(click, f"{css} to click")

    def _until(self, look: Callable[[], T | None], what: str, *, every: float = 0.1) -> T:
        """Look until there is something: "" counts, False and None do not. On failure a picture is left behind."""
        wait = WebDriverWait(self.browser, PATIENCE, poll_frequency=every, ignored_exceptions=(*_REDRAWN, ValueError))

        def found(_: object) -> tuple[T] | None:
            try:
                seen = look()
            except WebDriverException as error:
                if "does not belong to the document" in str(error):  # redrawn meanwhile, by another name
                    return None
                raise
            return None if seen is None or seen is False else (seen,)

        try:
            return wait.until(found)[0]
        except TimeoutException:
            self.browser.save_screenshot(str(self._folders[0] / "gave-up.png"))
            raise AssertionError(f"no {what} within {PATIENCE} s; see gave-up.png\n{self._body()[:2000]}") from None
