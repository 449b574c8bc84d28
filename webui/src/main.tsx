import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { Router } from "wouter";
import { ApiProblem } from "./api/client";
import { openSnapshot } from "./api/snapshot";
import { App, loadPage } from "./app";
import { useHashLocation, useHashSearch } from "./state/hash";
import { BASE, SAVED } from "./state/root";
import "./style.css";

const queries = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: Number.POSITIVE_INFINITY, // the stream says when something has changed
      refetchOnWindowFocus: false,
      refetchOnReconnect: false,
      networkMode: "always", // the manager may be on this machine
      retry: (failures, error) => error instanceof ApiProblem && error.status >= 500 && failures < 3,
    },
  },
});

// The files of this page are gone: another version of the manager serves it now.
window.addEventListener("vite:preloadError", () => window.location.reload());

const asFile = { hook: useHashLocation, searchHook: useHashSearch, hrefs: (href: string) => `#${href}` };

function show(page: HTMLElement): void {
  createRoot(page).render(
    <StrictMode>
      <QueryClientProvider client={queries}>
        <Router base={BASE} {...(SAVED ? asFile : {})}>
          <App />
        </Router>
      </QueryClientProvider>
    </StrictMode>,
  );
}

const page = document.getElementById("page");
if (page && SAVED)
  openSnapshot().then(
    () => show(page),
    (error: Error) => page.append(`This file cannot be shown: ${error.message}`),
  );
else if (page) loadPage(window.location.pathname.slice(BASE.length) || "/").then(() => show(page));
