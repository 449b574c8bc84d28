import { describe, expect, test } from "vitest";
import { canonicalQuery, pageAt, viewPath } from "../src/state/views";

describe("the page of an address", () => {
  const root = "/experiments/a";
  test("is one of those that can be saved", () => {
    expect(pageAt("/experiments/a/trials", root)).toBe("trials");
    expect(pageAt("/experiments/a/relations", root)).toBe("relations");
    for (const path of ["", "/events", "/log", "/toString", "/trials/b"]) expect(pageAt(root + path, root)).toBeNull();
    expect(pageAt("/experiments/ab/trials", root)).toBeNull();
  });
});

describe("the query of an address", () => {
  test("is ASCII without spaces and hashes, and means the same", () => {
    const query = canonicalQuery("?filter=`näme` > 0.9%23&sort=-value");
    expect(query).toMatch(/^[!"$-~]*$/);
    expect(Object.fromEntries(new URLSearchParams(query))).toEqual({ filter: "`näme` > 0.9#", sort: "-value" });
  });
  test("has one form", () => {
    expect(canonicalQuery("a=1%202&b")).toBe(canonicalQuery("?a=1+2&b="));
  });
});

test("the address of a view", () => {
  expect(viewPath("/experiments/a", { page: "trials", query: "sort=-value" })).toBe(
    "/experiments/a/trials?sort=-value",
  );
  expect(viewPath("/experiments/a", { page: "curves", query: "" })).toBe("/experiments/a/curves");
});
