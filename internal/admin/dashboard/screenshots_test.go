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

// TestLook makes pictures of everything for who works on the page, where KV3FS_LOOK says.
func TestLook(t *testing.T) {
	dir := os.Getenv("KV3FS_LOOK")
	if dir == "" {
		t.Skip("for who works on the page")
	}
	b := browser(t)
	for name, k := range map[string]known{"busy": busy(), "bare": bare(), "hostile": hostile()} {
		f := start(t, k, "")
		for size, width := range map[string]int64{"wide": 1280, "phone": 360} {
			for _, scheme := range []string{"light", "dark"} {
				p := newPage(t, b, width, 900)
				p.scheme(scheme)
				p.open(f.URL)
				picture, err := chromedp.Run(p.ctx, chromedp.FullScreenshot(100))
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, name+"-"+size+"-"+scheme+".png"), picture, 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}
