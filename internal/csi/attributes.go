package csi

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kv3fs/kv3fs/internal/csi/volumes"
	"github.com/kv3fs/kv3fs/internal/keeper"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
	"github.com/kv3fs/kv3fs/internal/spelling"
)

// What a pod's inline volume, or a PersistentVolume, may say in volumeAttributes.
const (
	attrSubDirectory = "subDirectory"
	attrQuota        = "quota"
	attrPages        = "pagesNamespace"
	attrReadOnly     = "readOnly"
)

// What kubelet adds, if the CSIDriver object has podInfoOnMount.
const (
	podNamespace = "csi.storage.k8s.io/pod.namespace"
	podName      = "csi.storage.k8s.io/pod.name"
	podUID       = "csi.storage.k8s.io/pod.uid"
)

// smallestQuota is what a daemon takes.
const smallestQuota = 1 << 20

// parseAttributes fills a record from volumeAttributes. What it does not know it refuses: a misspelt quota would be none.
func parseAttributes(given map[string]string) (r volumes.Record, err error) {
	known := []string{attrSubDirectory, attrQuota, attrPages, attrReadOnly}
	r.SubDirectory = "."
	for _, name := range slices.Sorted(maps.Keys(given)) {
		value := given[name]
		switch name {
		case attrSubDirectory:
			r.SubDirectory, err = volumes.SubDirectory(value)
		case attrQuota:
			r.QuotaBytes, err = parseQuota(value)
		case attrPages:
			if r.Pages = value; !httpserver.ValidNamespace(value) {
				err = invalid("%s %q: give 1 to 64 letters, digits, dots, underlines or hyphens", name, value)
			}
		case attrReadOnly:
			if r.ReadOnly, err = strconv.ParseBool(value); err != nil || value != strconv.FormatBool(r.ReadOnly) {
				err = invalid("%s %q: give true or false, in quotation marks", name, value)
			}
		case podNamespace:
			r.Namespace = value
		case podName:
			r.Pod = value
		default:
			if !strings.HasPrefix(name, "csi.storage.k8s.io/") && !strings.HasPrefix(name, "storage.kubernetes.io/") {
				err = invalid("volume attribute %q is not known%s; there are %s", name, meant(name, known), strings.Join(known, ", "))
			}
		}
		if err != nil {
			return r, err
		}
	}
	if r.QuotaBytes != 0 && r.SubDirectory == "." {
		return r, invalid("%s needs %s: the size of the whole cache is the daemon's --capacity", attrQuota, attrSubDirectory)
	}
	return r, nil
}

func meant(name string, known []string) string {
	if near := spelling.Misspelt(name, known); len(near) > 0 {
		return fmt.Sprintf(", is %s meant?", strings.Join(near, " or "))
	}
	return ""
}

func parseQuota(text string) (int64, error) {
	limit, err := keeper.ParseLimit(text)
	switch {
	case err != nil:
		return 0, invalid("%s %q: %v", attrQuota, text, err)
	case limit.Bytes < smallestQuota:
		return 0, invalid("%s %q: give a size such as 500GiB, at least 1MiB", attrQuota, text)
	}
	return limit.Bytes, nil
}

func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}
