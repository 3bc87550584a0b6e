// Keeps the files of the page, and those of bundles by their hash, for use without a network.

self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", event => event.waitUntil(self.clients.claim()));
self.addEventListener("fetch", event => {
  if (event.request.method === "GET") event.respondWith(answer(event.request));
});

async function answer(request) {
  const cache = await caches.open("voxport"), kept = await cache.match(request);
  if (kept && new URL(request.url).searchParams.has("sha256")) return kept;
  try {
    const response = await fetch(request);
    if (response.ok) await cache.put(request, response.clone());
    return response;
  } catch (error) {
    return kept ?? Promise.reject(error);
  }
}
