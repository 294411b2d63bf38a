package build

import (
	"fmt"
	"path"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/kv3fs/kv3fs/operator/internal/certs"
)

// Where things are in the daemon's container.
const (
	configDir  = "/etc/kv3fs"
	configFile = "kv3fs.yaml"
	secretDir  = "/etc/kv3fs-daemon"
	etcdDir    = "/etc/kv3fs-etcd"
	pagesDir   = "/etc/kv3fs-pages"
	dataDir    = "/data"
	runDir     = "/run/kv3fs.io"
)

// Config returns the configuration file of a cache's daemons. What differs between nodes is in their environment.
func Config(in Inputs) (string, error) {
	spec := in.Cache.Spec
	keys := map[string]any{
		"data":            dataPath(in),
		"data-must-exist": true,
		"mount":           MountPath(in.Cache.Name),
		"cluster":         in.Cache.Name,
		"capacity":        sizeText(spec.Capacity),
		"restart-state":   runDir + "/restart",
		// The next pod's daemon goes on with the rings of this one.
		"on-term":          "handover",
		"log-format":       "json",
		"pages-listen":     fmt.Sprintf("0.0.0.0:%d", spec.PageService.Port),
		"pages-host":       strings.Join(serviceNames(in), ","),
		"admin-listen":     fmt.Sprintf("0.0.0.0:%d", AdminPort),
		"admin-token-file": path.Join(secretDir, certs.Token),
		"admin-cert":       path.Join(secretDir, "tls.crt"),
		"admin-key":        path.Join(secretDir, "tls.key"),
	}
	if spec.Data.LocalDisk != nil {
		keys["data-must-be-mount"] = true
	}
	if spec.PageService.TokenSecret != "" {
		keys["pages-token-file"] = path.Join(pagesDir, "token")
	}
	if etcd := spec.PageService.Etcd; etcd != nil {
		prefix := etcd.Prefix
		if prefix == "" {
			prefix = "kv3fs/" + in.Cache.Name
		}
		keys["pages-store"] = "etcd://" + strings.Join(etcd.Endpoints, ",") + "/" + prefix
		keys["pages-peer-listen"] = fmt.Sprintf("0.0.0.0:%d", PeerPort)
		keys["pages-peer-token-file"] = path.Join(secretDir, certs.PeerToken)
		if in.Etcd.CA {
			keys["pages-store-ca"] = path.Join(etcdDir, "ca.crt")
		}
		if in.Etcd.Certificate {
			keys["pages-store-cert"], keys["pages-store-key"] = path.Join(etcdDir, "tls.crt"), path.Join(etcdDir, "tls.key")
		}
		if in.Etcd.Password {
			keys["pages-store-password-file"] = path.Join(etcdDir, "password")
		}
	}
	for key, value := range spec.Settings {
		if _, ours := keys[key]; !ours {
			keys[key] = value
		}
	}
	text, err := yaml.Marshal(keys)
	if err != nil {
		return "", fmt.Errorf("write the configuration of %s: %w", in.Cache.Name, err)
	}
	return string(text), nil
}

// dataPath is where the daemon has its files. A disk is seen in the directory above its mount point, by which the daemon notices
// that it is not mounted, and gets it once it is.
func dataPath(in Inputs) string {
	if disk := in.Cache.Spec.Data.LocalDisk; disk != nil {
		return path.Join(dataDir, path.Base(disk.MountPoint))
	}
	return dataDir
}

// sizeText writes a size of Kubernetes, such as 10Ti, as kv3fs reads it.
func sizeText(size string) string {
	if strings.HasSuffix(size, "i") {
		return size + "B"
	}
	return size
}
