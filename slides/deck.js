// Shows one page at a time. Keys: arrows, Space, Home, End; N notes, S speaker's window, F full screen.
(function () {
  "use strict";
  const root = document.documentElement;
  const pages = Array.from(document.querySelectorAll(".slide"));
  const panel = document.getElementById("notes");
  const clock = document.getElementById("clock");
  const speaker = location.search === "?speaker";
  let other = speaker ? window.opener : null;
  let at = 0;
  let step = 0;

  // Letters become smaller on a page whose contents need more room than it has.
  function overfull(page) {
    const body = page.querySelector(".content");
    const high = body.scrollHeight > body.clientHeight + 1 || page.scrollHeight > page.clientHeight + 1;
    return high || body.scrollWidth > body.clientWidth + 1;
  }

  function shrink(page) {
    const parts = page.querySelectorAll(".content > *, pre, table");
    const sizes = Array.from(parts, (part) => parseFloat(getComputedStyle(part).fontSize));
    for (let share = 0.96; share > 0.6 && overfull(page); share -= 0.04) {
      parts.forEach((part, index) => { part.style.fontSize = sizes[index] * share + "px"; });
      page.dataset.shrunk = share.toFixed(2);
    }
  }

  function later(page) { return page.querySelectorAll(".later"); }

  function place(page, left, width, height) {
    const scale = Math.min(width / 1280, height / 720);
    page.style.transform = `translate(${left}px, 0) scale(${scale})`;
    return scale;
  }

  function draw() {
    pages.forEach((page, index) => {
      page.classList.toggle("now", index === at);
      page.classList.toggle("next", speaker && index === at + 1);
    });
    later(pages[at]).forEach((part, index) => part.classList.toggle("hidden", index >= step));
    const noted = root.classList.contains("noted");
    const room = innerHeight * (noted ? 0.68 : 1);
    const width = speaker ? innerWidth * 0.45 : innerWidth;
    const scale = Math.min(width / 1280, room / 720);
    place(pages[at], speaker ? 0 : (width - 1280 * scale) / 2, width, room);
    if (speaker && pages[at + 1]) {
      const small = place(pages[at + 1], 0, width * 0.6, room * 0.5);
      pages[at + 1].style.transform = `translate(0, ${720 * scale + 12}px) scale(${small})`;
    }
    panel.innerHTML = pages[at].querySelector(".notes").innerHTML;
    panel.scrollTop = 0;
    history.replaceState(null, "", `#${at + 1}`);
  }

  function go(page, to, tell) {
    at = Math.max(0, Math.min(pages.length - 1, page));
    step = Math.max(0, Math.min(later(pages[at]).length, to));
    draw();
    if (tell && other && !other.closed) { other.postMessage({ at, step }, "*"); }
  }

  function forward() {
    if (step < later(pages[at]).length) { go(at, step + 1, true); }
    else if (at < pages.length - 1) { go(at + 1, 0, true); }
  }

  function back() {
    if (step > 0) { go(at, step - 1, true); }
    else if (at > 0) { go(at - 1, Infinity, true); }
  }

  const keys = {
    ArrowRight: forward, ArrowDown: forward, PageDown: forward, " ": forward, Enter: forward,
    ArrowLeft: back, ArrowUp: back, PageUp: back, Backspace: back,
    Home: () => go(0, 0, true),
    End: () => go(pages.length - 1, Infinity, true),
    n: () => { if (!speaker) { root.classList.toggle("noted"); draw(); } },
    s: () => { if (!speaker) { other = open(`${location.pathname}?speaker#${at + 1}`, "speaker"); } },
    f: () => { document.fullscreenElement ? document.exitFullscreen() : root.requestFullscreen(); },
  };

  addEventListener("keydown", (event) => {
    const act = keys[event.key] || keys[event.key.toLowerCase()];
    if (act && !event.ctrlKey && !event.altKey && !event.metaKey) { event.preventDefault(); act(); }
  });
  addEventListener("click", (event) => {
    if (event.target.closest("a, .notes")) { return; }
    if (event.clientX > innerWidth / 3) { forward(); } else { back(); }
  });
  addEventListener("message", (event) => {
    if (event.source === other && Number.isInteger(event.data.at)) { go(event.data.at, event.data.step); }
  });
  addEventListener("hashchange", () => go((parseInt(location.hash.slice(1), 10) || 1) - 1, 0, true));
  addEventListener("resize", draw);

  pages.forEach(shrink);
  root.classList.add("live");
  root.classList.toggle("speaker", speaker);
  if (speaker) {
    setInterval(() => { clock.textContent = new Date().toTimeString().slice(0, 5); }, 1000);
  }
  go((parseInt(location.hash.slice(1), 10) || 1) - 1, 0, false);
  root.dataset.ready = "yes";
})();
