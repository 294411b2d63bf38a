package dashboard

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
	"time"
)

//go:embed static
var static embed.FS

// Prefix is where the page's files are.
const Prefix = "/dashboard/"

// policy allows what the page needs and no more. Its styles are set by properties of elements, which "style-src" does not concern.
const policy = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// file is a file as it is answered.
type file struct {
	content  []byte
	kind     string // of its content
	revision string // in quotes, as ETag
}

// Handler answers "/" and what is below Prefix. It may be used by several servers at once.
func Handler() http.Handler {
	files := map[string]file{}
	err := fs.WalkDir(static, "static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := static.ReadFile(name)
		sum := sha256.Sum256(content)
		files[Prefix+strings.TrimPrefix(name, "static/")] = file{content, kindOf(name), `"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`}
		return err
	})
	if err != nil {
		panic(fmt.Sprintf("dashboard: the embedded files: %v", err)) // they are part of the program
	}
	files["/"] = files[Prefix+"index.html"]
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f, ok := files[r.URL.Path]
		switch {
		case !ok:
			http.NotFound(w, r)
			return
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "the dashboard is only read", http.StatusMethodNotAllowed)
			return
		}
		header := w.Header()
		header.Set("Content-Type", f.kind)
		header.Set("Content-Security-Policy", policy)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Cache-Control", "no-cache") // asked again each time, and answered with 304 until there is another version
		header.Set("ETag", f.revision)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.content))
	})
}

// kindOf does not ask the system's table of types, which may be wrong or missing.
func kindOf(name string) string {
	switch path.Ext(name) {
	case ".html":
		return "text/html; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	}
	return mime.FormatMediaType("text/plain", map[string]string{"charset": "utf-8"})
}
