#!/usr/bin/env python3
"""The page of `weft report` in a browser without a window: Chromium, with its driver and the package selenium.

    report_browser_test.py WEFT MPIRUN

Exits with 77 (skipped) if one of them is missing (Debian: chromium-driver; pip install selenium).
"""
import importlib.util
import shutil
import sys

from weft_case import WeftCase, main

if not importlib.util.find_spec("selenium") or not shutil.which("chromedriver"):
    print("skipped: chromedriver and the package selenium are needed")
    sys.exit(77)

from selenium import webdriver

# Elements whose box has no area, or leaves the box of its drawing by more than a line's width.
STRAYING = """
const strays = [];
for (const svg of document.querySelectorAll('svg.chart')) {
  const frame = svg.getBoundingClientRect();
  for (const element of svg.querySelectorAll('path, text, rect, circle')) {
    const box = element.getBoundingClientRect();
    const is_inside = box.left >= frame.left - 1 && box.right <= frame.right + 1 &&
                      box.top >= frame.top - 1 && box.bottom <= frame.bottom + 1;
    if (!is_inside || box.width + box.height === 0) strays.push(element.outerHTML.slice(0, 120));
  }
}
return strays;
"""
# Contrast of the text with the page as WCAG 2.2 defines it: (lighter + 0.05) / (darker + 0.05).
CONTRAST = """
const luminance = (color) => {
  const [r, g, b] = color.match(/[0-9.]+/g).slice(0, 3).map((part) => {
    const value = part / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const style = getComputedStyle(document.body);
const [low, high] = [luminance(style.color), luminance(style.backgroundColor)].sort((a, b) => a - b);
return (high + 0.05) / (low + 0.05);
"""


class ReportInABrowser(WeftCase):
    def setUp(self):
        super().setUp()
        for name, seed in (("before", 1), ("after", 2)):
            self.train("--steps", "100", "--seed", seed, "--metrics", f"{name}.jsonl", "--trace", f"{name}.json",
                       "--trace-steps", "3:5", ranks=2)
        result = self.run_weft("report", "before.jsonl", "after.jsonl", "--trace", "after.json", "-o", "report.html")
        self.assertEqual(result.returncode, 0, result.stderr)
        options = webdriver.ChromeOptions()
        for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
        self.addCleanup(self.browser.quit)

    def open_page(self, width):
        # Chromium's windows have a smallest width, the emulated device has none.
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                     {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600})
        self.browser.get((self.folder / "report.html").as_uri())

    def count(self, selector):
        return len(self.browser.find_elements("css selector", selector))

    def test_draws_every_curve_of_both_runs_inside_its_chart(self):
        self.open_page(1280)
        self.assertGreaterEqual(self.count(".charts figure"), 6)
        for run in (0, 1):
            self.assertEqual(self.count(f".charts figure:has(.chart path.line.run{run})"), self.count(".charts figure"))
        self.assertEqual(self.browser.execute_script(STRAYING), [])
        self.assertEqual(self.browser.get_log("browser"), [])

    def test_draws_the_times_of_the_trace(self):
        self.open_page(1280)
        colors = self.browser.execute_script(
            "return [...document.querySelectorAll('h2 ~ figure rect')].map((e) => getComputedStyle(e).fill);")
        self.assertEqual(len(set(colors)), 5)  # Forward, backward, exposed, gather and reduce.

    def test_loads_nothing_and_runs_no_script(self):
        self.open_page(1280)
        loaded = self.browser.execute_script("return performance.getEntriesByType('resource').map((e) => e.name);")
        self.assertEqual(loaded, [])
        self.assertEqual(self.count("script, link, iframe, img[src^=http]"), 0)

    def test_fits_any_width(self):
        for width in (320, 600, 1280, 2560):
            self.open_page(width)
            self.assertLessEqual(self.browser.execute_script("return document.documentElement.scrollWidth;"), width)
            self.assertEqual(self.browser.execute_script(STRAYING), [], width)

    def test_is_legible_in_light_and_dark_mode(self):
        pages = {}
        for mode in ("light", "dark"):
            self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia",
                                         {"features": [{"name": "prefers-color-scheme", "value": mode}]})
            self.open_page(1280)
            self.assertGreaterEqual(self.browser.execute_script(CONTRAST), 7)
            pages[mode] = self.browser.execute_script("return getComputedStyle(document.body).backgroundColor;")
        self.assertNotEqual(pages["light"], pages["dark"])

    def test_opens_the_values_of_both_runs(self):
        self.open_page(1280)
        self.browser.find_element("css selector", "summary").click()
        tables = [table for table in self.browser.find_elements("css selector", "details table") if table.is_displayed()]
        self.assertEqual(len(tables), 2)
        self.assertIn("before", tables[0].text)


if __name__ == "__main__":
    main()
