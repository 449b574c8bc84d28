import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { Router } from "wouter";
import { ApiProblem } from "./api/client";
import { App } from "./app";
import { BASE } from "./state/root";
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

const page = document.getElementById("page");
if (page) {
  createRoot(page).render(
    <StrictMode>
      <QueryClientProvider client={queries}>
        <Router base={BASE}>
          <App />
        </Router>
      </QueryClientProvider>
    </StrictMode>,
  );
}
