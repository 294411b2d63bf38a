package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The image layout is the same whenever and by whomever it is made, its blobs are what their
// descriptors say, and each processor's image runs its own binary as a user who is not root.
func TestOCIImage(t *testing.T) {
	for _, name := range []string{"bash", "tar", "gzip", "sha256sum"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip(err)
		}
	}
	dir := t.TempDir()
	var binaries []string
	for _, arch := range []string{"amd64", "arm64"} {
		path := filepath.Join(dir, "kv3fs-linux-"+arch)
		if err := os.WriteFile(path, []byte("binary for "+arch), 0o755); err != nil {
			t.Fatal(err)
		}
		binaries = append(binaries, path)
	}
	var images [][]byte
	for i, umask := range []string{"022", "077"} {
		out := filepath.Join(dir, fmt.Sprint(i))
		cmd := exec.Command("bash", append([]string{"-c", "umask " + umask + `; exec "$@"`, "bash", "../../scripts/ociimage", "1.2.3", "2026-11-27T13:00:00+02:00", out}, binaries...)...)
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		image, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		images = append(images, image)
	}
	if !bytes.Equal(images[0], images[1]) {
		t.Error("two images of the same binaries differ")
	}
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(images[0])); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
		if digest, ok := strings.CutPrefix(h.Name, "blobs/sha256/"); ok && digest != "" && digest != fmt.Sprintf("%x", sha256.Sum256(files[h.Name])) {
			t.Errorf("%s is not what it says", h.Name)
		}
	}
	type descriptor struct {
		Digest   string
		Size     int
		Platform struct{ Architecture string }
	}
	read := func(d descriptor, into any) {
		t.Helper()
		text := files["blobs/"+strings.Replace(d.Digest, ":", "/", 1)]
		if len(text) != d.Size || json.Unmarshal(text, into) != nil {
			t.Fatalf("%+v: %d bytes: %s", d, len(text), text)
		}
	}
	var index struct{ Manifests []descriptor }
	if err := json.Unmarshal(files["index.json"], &index); err != nil || len(index.Manifests) != 2 {
		t.Fatalf("%v: %s", err, files["index.json"])
	}
	for _, m := range index.Manifests {
		var manifest struct {
			Config descriptor
			Layers []descriptor
		}
		read(m, &manifest)
		var config struct {
			Architecture string
			Config       struct {
				User       string
				Entrypoint []string
			}
		}
		read(manifest.Config, &config)
		if config.Architecture != m.Platform.Architecture || config.Config.User != "65532:65532" || config.Config.Entrypoint[0] != "/usr/bin/kv3fs" || len(manifest.Layers) != 1 {
			t.Errorf("%+v %+v", config, manifest)
		}
		layer := exec.Command("tar", "-xzO", "-f", "-", "usr/bin/kv3fs")
		layer.Stdin = bytes.NewReader(files["blobs/"+strings.Replace(manifest.Layers[0].Digest, ":", "/", 1)])
		if text, err := layer.Output(); err != nil || string(text) != "binary for "+m.Platform.Architecture {
			t.Errorf("%s: %v, %q", m.Platform.Architecture, err, text)
		}
	}
}
