"""Drives a browser without a window, with Python's own library alone: Chromium by WebDriver over HTTP
(package chromium-driver), Firefox by Marionette, the socket that geckodriver itself talks to."""

import base64
import http.client
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Escape": "\ue00c", "Space": " ", "ArrowLeft": "\ue012",
        "ArrowUp": "\ue013", "ArrowRight": "\ue014", "ArrowDown": "\ue015", "Home": "\ue011", "End": "\ue010",
        "Shift": "\ue008"}


class Browser:
    """What both drivers can do. Elements are named by CSS selectors. Pages are shown without motion."""

    def run(self, script, *arguments):
        """Returns what a function body returns in the page."""
        raise NotImplementedError

    def press(self, *keys):
        """Presses and releases keys one after the other, wherever the focus is."""
        actions = []
        for key in keys:
            value = KEYS.get(key, key)
            actions += [{"type": "keyDown", "value": value}, {"type": "keyUp", "value": value}]
        self.act([{"type": "key", "id": "keyboard", "actions": actions}])

    def click(self, selector, x=0, y=0):
        """Clicks the middle of an element, or that many pixels away from it."""
        self.run("document.querySelector(arguments[0])"
                 ".scrollIntoView({block: 'center', behavior: 'instant'})", selector)
        box = self.run("const b = document.querySelector(arguments[0]).getBoundingClientRect();"
                       "return [b.left + b.width / 2, b.top + b.height / 2]", selector)
        self.act([{"type": "pointer", "id": "mouse", "actions": [
            {"type": "pointerMove", "x": round(box[0] + x), "y": round(box[1] + y)},
            {"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]}])

    def open(self, url):
        self.go("about:blank")  # another fragment alone would not load the page anew
        self.go(url)
        end = time.monotonic() + 60
        while self.run("return document.documentElement.dataset.ready") != "yes":
            fault = self.run("return document.getElementById('fault')?.textContent")
            if fault or time.monotonic() > end:
                raise AssertionError(f"the page does not become ready: {fault}")
            time.sleep(0.05)

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0])?.textContent", selector)


class Chromium(Browser):
    name = "Chromium"

    def __init__(self, width, height):
        self.folder = tempfile.mkdtemp(prefix="keyhole-chromium-")
        port = free_port()
        self.driver = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL)
        self.http = None
        wait_for_port(port)
        self.http = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        options = {"args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                            f"--user-data-dir={self.folder}", f"--window-size={width},{height}",
                            "--force-device-scale-factor=1", "--hide-scrollbars",
                            # A click finds what stands at its place: nothing may still be scrolling.
                            "--force-prefers-reduced-motion"]}
        self.session = "/session/" + self.ask("POST", "/session", {"capabilities": {"alwaysMatch": {
            "browserName": "chrome", "goog:chromeOptions": options}}})["sessionId"]

    @staticmethod
    def is_here():
        return shutil.which("chromedriver") is not None and shutil.which("chromium") is not None

    def ask(self, method, path, body=None):
        self.http.request(method, path, json.dumps(body) if body is not None else None,
                          {"Content-Type": "application/json"})
        value = json.loads(self.http.getresponse().read())["value"]
        if isinstance(value, dict) and "error" in value:
            raise AssertionError(f"{value['error']}: {value['message'][:400]}")
        return value

    def go(self, url):
        self.ask("POST", self.session + "/url", {"url": url})

    def run(self, script, *arguments):
        return self.ask("POST", self.session + "/execute/sync", {"script": script, "args": list(arguments)})

    def act(self, actions):
        self.ask("POST", self.session + "/actions", {"actions": actions})

    def emulate(self, media):
        """Sets a media feature, such as {"prefers-color-scheme": "dark"}."""
        features = [{"name": name, "value": value} for name, value in media.items()]
        self.ask("POST", self.session + "/goog/cdp/execute",
                 {"cmd": "Emulation.setEmulatedMedia", "params": {"features": features}})

    def picture(self):
        return base64.b64decode(self.ask("GET", self.session + "/screenshot"))

    def whole_picture(self):
        """Returns the whole page as PNG, not only what is in the window."""
        made = self.ask("POST", self.session + "/goog/cdp/execute",
                        {"cmd": "Page.captureScreenshot", "params": {"captureBeyondViewport": True}})
        return base64.b64decode(made["data"])

    def resize(self, width, height):
        self.ask("POST", self.session + "/goog/cdp/execute", {
            "cmd": "Emulation.setDeviceMetricsOverride",
            "params": {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}})

    def printed(self):
        """Returns the page as it is printed, as PDF."""
        return base64.b64decode(self.ask("POST", self.session + "/print", {}))

    def close(self):
        try:
            if self.http is not None:
                self.ask("DELETE", self.session)
        finally:
            self.driver.terminate()
            self.driver.wait()
            shutil.rmtree(self.folder, ignore_errors=True)


class Firefox(Browser):
    name = "Firefox"

    def __init__(self, width, height):
        self.folder = tempfile.mkdtemp(prefix="keyhole-firefox-")
        port = free_port()
        with open(os.path.join(self.folder, "user.js"), "w", encoding="utf-8") as file:
            file.write(f'user_pref("marionette.port", {port});\n'
                       'user_pref("datareporting.policy.dataSubmissionEnabled", false);\n'
                       'user_pref("app.update.enabled", false);\n'
                       'user_pref("ui.prefersReducedMotion", 1);\n')
        self.process = subprocess.Popen(
            ["firefox-esr", "--headless", "--marionette", "--no-remote", "--profile", self.folder,
             f"--width={width}", f"--height={height}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "HOME": self.folder})
        wait_for_port(port)
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=120)
        self.buffer = b""
        self.count = 0
        self.receive()  # says who it is
        self.ask("WebDriver:NewSession", {})

    @staticmethod
    def is_here():
        return shutil.which("firefox-esr") is not None

    def receive(self):
        while b":" not in self.buffer:
            self.read()
        size, self.buffer = self.buffer.split(b":", 1)
        while len(self.buffer) < int(size):
            self.read()
        message, self.buffer = self.buffer[:int(size)], self.buffer[int(size):]
        return json.loads(message)

    def read(self):
        part = self.socket.recv(65536)
        if not part:
            raise AssertionError("Firefox ended")
        self.buffer += part

    def ask(self, command, parameters):
        self.count += 1
        message = json.dumps([0, self.count, command, parameters]).encode()
        self.socket.sendall(str(len(message)).encode() + b":" + message)
        _, _, error, value = self.receive()
        if error:
            raise AssertionError(f"{error['error']}: {error['message'][:400]}")
        return value

    def go(self, url):
        self.ask("WebDriver:Navigate", {"url": url})

    def evaluate(self, script, arguments=()):
        return self.ask("WebDriver:ExecuteScript", {"script": script, "args": list(arguments)})["value"]

    def run(self, script, *arguments):
        # As a script of the page: others see its functions, but not its constants.
        self.evaluate("""
            const script = document.createElement('script'), root = document.documentElement;
            for (const name of ['data-result', 'data-failure']) root.removeAttribute(name);
            script.textContent = `{ const root = document.documentElement;
                new Promise(done => done((function() {${arguments[0]}\n}).apply(null, ${arguments[1]})))
                    .then(value => root.setAttribute('data-result', JSON.stringify(value ?? null)),
                          error => root.setAttribute('data-failure', String(error))); }`;
            document.head.append(script);
            script.remove();""", [script, json.dumps(list(arguments))])
        end = time.monotonic() + 30
        while time.monotonic() < end:
            result, failure = self.evaluate("const root = document.documentElement;"
                "return [root.getAttribute('data-result'), root.getAttribute('data-failure')]")
            if failure is not None:
                raise AssertionError(failure)
            if result is not None:
                return json.loads(result)
            time.sleep(0.01)
        raise AssertionError("a script does not end")

    def act(self, actions):
        self.ask("WebDriver:PerformActions", {"actions": actions})

    def resize(self, width, height):
        self.ask("WebDriver:SetWindowRect", {"width": width, "height": height})

    def close(self):
        try:
            self.ask("Marionette:Quit", {"flags": ["eForceQuit"]})
        except (AssertionError, OSError):
            self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for_port(port):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"nothing answers on port {port}")


def browsers_here():
    return [kind for kind in (Chromium, Firefox) if kind.is_here()]
