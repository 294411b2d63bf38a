package csitest

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// administrator makes volumes as one writes PersistentVolumes by hand: kv3fs has no controller, and csi-sanity gets its volumes from one.
type administrator struct {
	spec.UnimplementedIdentityServer
	spec.UnimplementedControllerServer
}

// administer serves one until the test ends, and returns its address.
func administer(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "controller.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	spec.RegisterIdentityServer(s, administrator{})
	spec.RegisterControllerServer(s, administrator{})
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return "unix://" + path
}

// GetPluginInfo says who it is.
func (administrator) GetPluginInfo(context.Context, *spec.GetPluginInfoRequest) (*spec.GetPluginInfoResponse, error) {
	return &spec.GetPluginInfoResponse{Name: "administrator", VendorVersion: "1"}, nil
}

// GetPluginCapabilities names none.
func (administrator) GetPluginCapabilities(context.Context, *spec.GetPluginCapabilitiesRequest) (*spec.GetPluginCapabilitiesResponse, error) {
	return &spec.GetPluginCapabilitiesResponse{}, nil
}

// Probe says that it is there.
func (administrator) Probe(context.Context, *spec.ProbeRequest) (*spec.ProbeResponse, error) {
	return &spec.ProbeResponse{}, nil
}

// ControllerGetCapabilities says that there are volumes.
func (administrator) ControllerGetCapabilities(context.Context, *spec.ControllerGetCapabilitiesRequest) (*spec.ControllerGetCapabilitiesResponse, error) {
	return &spec.ControllerGetCapabilitiesResponse{Capabilities: []*spec.ControllerServiceCapability{{Type: &spec.ControllerServiceCapability_Rpc{
		Rpc: &spec.ControllerServiceCapability_RPC{Type: spec.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME},
	}}}}, nil
}

// CreateVolume returns a volume with a sub-directory of its own.
func (administrator) CreateVolume(_ context.Context, r *spec.CreateVolumeRequest) (*spec.CreateVolumeResponse, error) {
	if r.GetName() == "" {
		return nil, status.Error(codes.InvalidArgument, "name is missing")
	}
	return &spec.CreateVolumeResponse{Volume: &spec.Volume{
		VolumeId: r.GetName(), CapacityBytes: r.GetCapacityRange().GetRequiredBytes(),
		VolumeContext: map[string]string{"subDirectory": "sanity/" + r.GetName(), "quota": "2MiB"},
	}}, nil
}

// DeleteVolume does nothing: files stay.
func (administrator) DeleteVolume(context.Context, *spec.DeleteVolumeRequest) (*spec.DeleteVolumeResponse, error) {
	return &spec.DeleteVolumeResponse{}, nil
}
