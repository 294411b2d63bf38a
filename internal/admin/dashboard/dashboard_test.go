package dashboard

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"testing"
)

func ask(t *testing.T, method, path string, header http.Header) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(method, path, nil)
	for name, values := range header {
		r.Header[name] = values
	}
	w := httptest.NewRecorder()
	Handler().ServeHTTP(w, r)
	return w
}

func TestFiles(t *testing.T) {
	for path, kind := range map[string]string{
		"/": "text/html; charset=utf-8", Prefix + "main.js": "text/javascript; charset=utf-8", Prefix + "style.css": "text/css; charset=utf-8",
		Prefix + "uplot/uPlot.iife.min.js": "text/javascript; charset=utf-8", Prefix + "icon.svg": "image/svg+xml", Prefix + "uplot/LICENSE": "text/plain; charset=utf-8",
	} {
		w := ask(t, http.MethodGet, path, nil)
		if w.Code != http.StatusOK || w.Header().Get("Content-Type") != kind || w.Body.Len() == 0 {
			t.Errorf("%s: %d %v", path, w.Code, w.Header())
		}
		if w.Header().Get("Content-Security-Policy") != policy || w.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %v", path, w.Header())
		}
		again := ask(t, http.MethodGet, path, http.Header{"If-None-Match": {w.Header().Get("ETag")}})
		if again.Code != http.StatusNotModified || again.Body.Len() > 0 {
			t.Errorf("%s again: %d", path, again.Code)
		}
	}
	for _, path := range []string{Prefix, Prefix + "nothing", Prefix + "../dashboard.go", "/index.html", Prefix + "uplot"} {
		if w := ask(t, http.MethodGet, path, nil); w.Code != http.StatusNotFound {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
	if w := ask(t, http.MethodPost, "/", nil); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", w.Code)
	}
}

// The vendored files are those that VENDORED.txt records, all of them, and nothing else.
func TestVendored(t *testing.T) {
	recorded, err := static.ReadFile("static/uplot/VENDORED.txt")
	if err != nil {
		t.Fatal(err)
	}
	sums, line := map[string]string{}, regexp.MustCompile(`^([0-9a-f]{64})  (\S+)$`)
	for lines := bufio.NewScanner(bytes.NewReader(recorded)); lines.Scan(); {
		if m := line.FindStringSubmatch(lines.Text()); m != nil {
			sums[m[2]] = m[1]
		}
	}
	files, err := fs.ReadDir(static, "static/uplot")
	if err != nil {
		t.Fatal(err)
	}
	if len(sums) == 0 || len(files) != len(sums)+1 {
		t.Errorf("%d files, and hashes of %d", len(files), len(sums))
	}
	for _, f := range files {
		if f.Name() == "VENDORED.txt" {
			continue
		}
		content, err := static.ReadFile(path.Join("static/uplot", f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != sums[f.Name()] {
			t.Errorf("%s: SHA-256 %x, recorded is %q", f.Name(), sum, sums[f.Name()])
		}
	}
}

// The page's own files name no other host, and make no markup from texts.
func TestNothingFromElsewhere(t *testing.T) {
	bad := regexp.MustCompile(`https?://|innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|\sstyle="|\son[a-z]+="`)
	err := fs.WalkDir(static, "static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasPrefix(name, "static/uplot/") || name == "static/icon.svg" {
			return err
		}
		content, err := static.ReadFile(name)
		if found := bad.Find(content); found != nil {
			t.Errorf("%s has %q", name, found)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
