package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/kv3fs/kv3fs/internal/admin"
	"github.com/kv3fs/kv3fs/internal/csi"
)

type csiCmd struct {
	Mount        givenPath     `required:"" placeholder:"DIR" help:"The daemon's mount, as in serve --mount. A container needs the directory that holds it, with mountPropagation: HostToContainer, and not the mount itself: so it sees the next daemon's."`
	Node         string        `placeholder:"NAME" help:"The node's name in Kubernetes. Default: the host's."`
	Name         driverName    `default:"kv3fs.io" placeholder:"NAME" help:"Name of the plugin, the CSIDriver object's and that of driver: in pods and PersistentVolumes."`
	Kubelet      givenPath     `default:"/var/lib/kubelet" placeholder:"DIR" help:"Kubelet's --root-dir. A container needs it under the same path, with mountPropagation: Bidirectional."`
	Endpoint     endpoint      `placeholder:"unix:PATH" help:"Where kubelet asks. Default: plugins/NAME/csi.sock below --kubelet."`
	Registration givenPath     `placeholder:"PATH" help:"Socket by which kubelet finds the plugin, or off. Default: plugins_registry/NAME-reg.sock below --kubelet."`
	State        givenPath     `placeholder:"DIR" help:"Where it is kept which pods have which volumes. Default: plugins/NAME/state below --kubelet."`
	Data         givenPath     `placeholder:"DIR" help:"The daemon's data directory, by which the volume attribute quota reaches it; the daemon then needs --capacity."`
	Pages        givenPath     `placeholder:"DIR" help:"Directory that holds a directory for each page namespace, with its socket, for the volume attribute pagesNamespace: serve --pages-listen NAME=unix:DIR/NAME/pages.sock."`
	Allow        []csi.Grant   `placeholder:"NAMESPACE=DIR" help:"Pods of this namespace (*: of any) may have volumes with this sub-directory, or one below it; {namespace} in it stands for the pod's. Give several separated by commas, or repeat the flag. Others may then have none. Default: all may have everything."`
	AllowPages   []csi.Grant   `placeholder:"NAMESPACE=NAME" help:"Pods of this namespace may use this page namespace, as with --allow, without which it has the default that all may."`
	AllowQuota   []csi.Grant   `placeholder:"NAMESPACE=SIZE" help:"Pods of this namespace may set a quota of at most this size, of directories that no other namespace has by --allow, without which it has the default that all may."`
	Timeout      time.Duration `default:"5s" range:"100ms..1h" help:"How long anything that touches the mount may take, before kubelet gets an error and tries again."`
	Admin        adminFlags    `embed:"" prefix:"admin-"`
	Log          logFlags      `embed:"" prefix:"log-"`
}

// csiAdminListen is beside the daemon's, which may be in the same network.
const csiAdminListen = "127.0.0.1:9181"

// Help is what "kv3fs csi --help" adds to the flags.
func (*csiCmd) Help() string {
	return `For example, on a node where kv3fs serve --mount /run/kv3fs/mnt/3fs runs:

  kv3fs csi --mount /run/kv3fs/mnt/3fs --node node-1

It registers itself with kubelet. A pod then gets a part of the cache by a volume:

  csi:
    driver: kv3fs.io
    volumeAttributes:
      subDirectory: team-a

Further attributes are quota, pagesNamespace and readOnly: docs/kubernetes.md. The default of
--admin-listen is 127.0.0.1:9181 here.`
}

// driverName is a name as CSI wants it: a domain.
type driverName string

var driverNames = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?$`)

// UnmarshalText parses it.
func (n *driverName) UnmarshalText(text []byte) error {
	if !driverNames.Match(text) {
		return fmt.Errorf("%.70q: want at most 63 letters, digits, dots and hyphens, such as kv3fs.io", text)
	}
	*n = driverName(text)
	return nil
}

// endpoint is the path of a unix socket.
type endpoint string

// UnmarshalText parses unix:PATH and unix://PATH.
func (e *endpoint) UnmarshalText(text []byte) error {
	path, ok := strings.CutPrefix(string(text), "unix:")
	path = strings.TrimPrefix(path, "//")
	if !ok || !filepath.IsAbs(path) {
		return fmt.Errorf("%.200q: want unix: and an absolute path", text)
	}
	*e = endpoint(path)
	return nil
}

// MarshalText is the inverse of UnmarshalText.
func (e endpoint) MarshalText() ([]byte, error) { return []byte("unix:" + string(e)), nil }

// Validate reports flags that do not fit.
func (c *csiCmd) Validate() error {
	for _, g := range c.Allow {
		if err := g.Directory(); err != nil {
			return bad("allow", "%v", err)
		}
	}
	for _, g := range c.AllowQuota {
		if err := g.Quota(); err != nil {
			return bad("allow-quota", "%v", err)
		}
	}
	return nil
}

// Run serves until ctx ends.
func (c *csiCmd) Run(ctx serverContext, tell *teller) error {
	web, err := c.Admin.config()
	if err != nil {
		return err
	}
	if c.Admin.Listen == "" {
		web.Address = csiAdminListen
	}
	node := c.Node
	if node == "" {
		if node, err = os.Hostname(); err != nil {
			return err
		}
	}
	lines := c.Log.open(tell, everything)
	tuneCollector()
	signal.Ignore(syscall.SIGPIPE) // the program that reads the log may exit
	syscall.Umask(0)               // modes of sub-directories are as they are said
	config := csi.Config{
		Name: string(c.Name), Node: node, Version: version(), Mount: string(c.Mount), Kubelet: string(c.Kubelet), Pages: string(c.Pages),
		Paths: csi.DefaultPaths(string(c.Kubelet), string(c.Name)), Allow: c.Allow, AllowPages: c.AllowPages, AllowQuota: c.AllowQuota, Patience: c.Timeout,
		Web: csi.Web{Address: web.Address, Token: web.Token, TLS: web.TLS, Profiles: web.Profiles, Optional: web.Optional},
		Log: lines.Logger(),
	}
	if c.Endpoint != "" {
		config.Endpoint = string(c.Endpoint)
	}
	if c.State != "" {
		config.State = string(c.State)
	}
	switch c.Registration {
	case "":
	case "off":
		config.Registration = ""
	default:
		config.Registration = string(c.Registration)
	}
	if c.Data != "" {
		config.SetQuota = c.setQuota
	}
	return csi.Run(ctx, config, func() {
		lines.Always().Info("serving volumes", "mount", config.Mount, "endpoint", config.Endpoint, "registration", config.Registration, "node", node, "pid", os.Getpid())
	})
}

// setQuota asks the daemon to limit what a directory below its mount may take.
func (c *csiCmd) setQuota(ctx context.Context, dir string, bytes int64) error {
	dirs, err := socketDirs(string(c.Data))
	if err != nil {
		return err
	}
	client, err := admin.Dial(ctx, dirs, c.Timeout)
	if errors.Is(err, admin.ErrNoDaemon) {
		return fmt.Errorf("no daemon of this host serves %s: give kv3fs csi --data what serve has as --data, and mount it into this container", printable(string(c.Data)))
	}
	if err != nil {
		return err
	}
	defer client.Close()
	return client.SetQuota(ctx, dir, bytes)
}
