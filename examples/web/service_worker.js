// Keeps the files of the page, and those of bundles by their hash, for use without a network.
self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", event => event.waitUntil(self.clients.claim()));
self.addEventListener("fetch", event => {
  if (event.request.method === "GET") event.respondWith(answer(event.request, event));
});

async function answer(request, event) {
  const cache = await caches.open("voxport"), kept = await cache.match(request);
  if (kept && new URL(request.url).searchParams.has("sha256")) return kept;
  const response = await fetch(request).catch(error => kept ?? Promise.reject(error));
  if (response.ok && response !== kept) {
    event.waitUntil(cache.put(request, response.clone()).catch(() => {})); // the disk may be full
  }
  return response;
}
