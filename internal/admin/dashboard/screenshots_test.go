package dashboard

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
)

// TestScreenshots makes the pictures of the documentation, where KV3FS_SCREENSHOTS says; make screenshots runs it.
func TestScreenshots(t *testing.T) {
	dir := os.Getenv("KV3FS_SCREENSHOTS")
	if dir == "" {
		t.Skip("make screenshots runs it")
	}
	b := browser(t)
	f := start(t, busy(), "")
	for name, scheme := range map[string]string{"dashboard-light.png": "light", "dashboard-dark.png": "dark"} {
		p := newPage(t, b, 1280, 1480)
		p.scheme(scheme)
		p.open(f.URL)
		picture, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), picture, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
