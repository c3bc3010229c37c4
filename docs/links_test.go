// Package docs tests the references of the pages in this folder and at the root.
package docs

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"unicode"
)

// pages are the patterns of the pages whose links are checked.
var pages = []string{"*.md", "docs/*.md", "docs/*/*.md", "loadtest/functions/*.md"}

func TestLinksLeadSomewhere(t *testing.T) {
	found, broken := links(t, os.DirFS(".."))
	for _, link := range broken {
		t.Error(link)
	}
	if found < 100 {
		t.Errorf("only %d links were found", found)
	}
}

func TestBrokenLinksAreFound(t *testing.T) {
	_, broken := links(t, fstest.MapFS{
		"README.md": {Data: []byte("[a](docs/a.md) [b](docs/a.md#what-a-is) [c](docs) [d](https://x.test/y#z) [e](#e)\n" +
			"[f](docs/b.md) [g](docs/a.md#nothing)\n# E\n```\n[h](in-code)\n# In code\n```\n[i](#in-code)")},
		"docs/a.md": {Data: []byte("# What `a` is\n## What a is\n[j](../README.md#e) [k](#what-a-is-1) [l](README.md)\n")},
	})
	want := []string{
		"README.md: docs/b.md: open docs/b.md: file does not exist",
		"README.md: docs/a.md#nothing: docs/a.md has no such heading",
		"README.md: #in-code: README.md has no such heading",
		"docs/a.md: README.md: open docs/README.md: file does not exist",
	}
	if !slices.Equal(broken, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(broken, "\n"), strings.Join(want, "\n"))
	}
}

// Pages name the tests that prove what they promise.
func TestTestsThatPagesNameAreThere(t *testing.T) {
	root := os.DirFS("..")
	tests := map[string]bool{}
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (name == "bin" || name == "out" || name != "." && strings.HasPrefix(entry.Name(), ".")):
			return fs.SkipDir // build output
		case !strings.HasSuffix(name, "_test.go"):
			return nil
		}
		text, err := fs.ReadFile(root, name)
		for _, match := range testFunction.FindAllSubmatch(text, -1) {
			tests[string(match[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	eachPage(t, root, func(name, text string) {
		for _, match := range testName.FindAllStringSubmatch(text, -1) {
			if named++; !tests[match[1]] {
				t.Errorf("%s names the test %s, which there is not", name, match[1])
			}
		}
	})
	if named == 0 {
		t.Error("no page names a test")
	}
}

var (
	testFunction = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	testName     = regexp.MustCompile("`(Test[A-Z]\\w+)`")

	fence   = regexp.MustCompile("(?ms)^```.*?^```")
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *$`)
)

// links counts the links of all pages, and names those that lead to no file of the repository,
// or to no heading in the file. It does not check links to other sites.
func links(t *testing.T, root fs.FS) (found int, broken []string) {
	t.Helper()
	eachPage(t, root, func(name, text string) {
		for _, match := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(match[1], "://") {
				continue
			}
			found++
			if err := follow(root, name, match[1]); err != nil {
				broken = append(broken, fmt.Sprintf("%s: %s: %v", name, match[1], err))
			}
		}
	})
	return found, broken
}

// eachPage visits the pages, without their blocks of code.
func eachPage(t *testing.T, root fs.FS, visit func(name, text string)) {
	t.Helper()
	for _, pattern := range pages {
		names, err := fs.Glob(root, pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			text, err := read(root, name)
			if err != nil {
				t.Fatal(err)
			}
			visit(name, text)
		}
	}
}

// follow returns an error if a link on a page leads nowhere.
func follow(root fs.FS, page, link string) error {
	to, anchor, anchored := strings.Cut(link, "#")
	name := page
	if to != "" {
		name = path.Join(path.Dir(page), to)
	}
	if _, err := fs.Stat(root, name); err != nil || !anchored {
		return err
	}
	text, err := read(root, name)
	if err != nil {
		return err
	}
	if !slices.Contains(anchors(text), anchor) {
		return fmt.Errorf("%s has no such heading", name)
	}
	return nil
}

// read returns the text of a page without its blocks of code.
func read(root fs.FS, name string) (string, error) {
	text, err := fs.ReadFile(root, name)
	return fence.ReplaceAllString(string(text), ""), err
}

// anchors returns the anchors that GitHub makes of a page's headings.
func anchors(text string) []string {
	var all []string
	times := map[string]int{}
	for _, match := range heading.FindAllStringSubmatch(text, -1) {
		anchor := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`).ReplaceAllString(match[1], "$1"))
		n := times[anchor]
		if times[anchor]++; n > 0 {
			anchor = fmt.Sprintf("%s-%d", anchor, n)
		}
		all = append(all, anchor)
	}
	return all
}
