import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

// The built page is served at any depth below any prefix: every link in it is relative, and the manager fills in the way
// to its root (manager/api/routes/dashboard.py). Nothing is inlined: the manager's Content-Security-Policy forbids it.
export default defineConfig({
  base: "./",
  plugins: [react()],
  build: {
    outDir: "../manager/static",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: ["chrome120", "firefox120", "safari17.4"],
    reportCompressedSize: false,
  },
  server: {
    // `npm run dev` beside a running manager: PROCTOR_URL and PROCTOR_TOKEN name it.
    proxy: {
      "/api": {
        target: process.env.PROCTOR_URL ?? "http://127.0.0.1:8080",
        headers: { Authorization: `Bearer ${process.env.PROCTOR_TOKEN ?? ""}` },
      },
    },
  },
  test: { environment: "happy-dom", include: ["tests/**/*.test.{ts,tsx}"] },
});
