// A stand-in for NVIDIA's device plugin: the kubelet's own gRPC API, with GPUs and slices that are declared in a file
// instead of found by a driver. Editing the file changes health and number at once. There is no GPU behind any of them.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const glance = 200 * time.Millisecond

type device struct {
	Resource string `json:"resource"`
	UUID     string `json:"uuid"`
	Healthy  bool   `json:"healthy"`
}

type geometry struct {
	Devices []device `json:"devices"`
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: deviceplugin GEOMETRY.json")
	}
	plugins := map[string]*plugin{}
	for ; ; time.Sleep(glance) {
		for _, resource := range resources(os.Args[1]) {
			if plugins[resource] == nil {
				plugins[resource] = &plugin{resource: resource, file: os.Args[1]}
			}
		}
		for _, one := range plugins {
			if err := one.keepRegistered(); err != nil {
				log.Printf("stand-in for %s: %v; tried again", one.resource, err)
			}
		}
	}
}

// plugin serves the devices of one resource name.
type plugin struct {
	api.UnimplementedDevicePluginServer
	resource string
	file     string
	server   *grpc.Server
	kubelet  os.FileInfo // the kubelet's socket when we registered: a new one means a new kubelet
}

// keepRegistered serves and registers again after every start of the kubelet, which removes the sockets of all plugins.
func (p *plugin) keepRegistered() error {
	kubelet, err := os.Stat(api.KubeletSocket)
	if err != nil {
		return nil // no kubelet now
	}
	if _, err := os.Stat(p.socket()); err == nil && p.kubelet != nil && os.SameFile(kubelet, p.kubelet) {
		return nil
	}
	if p.server != nil {
		p.server.Stop()
	}
	_ = os.Remove(p.socket())
	listener, err := net.Listen("unix", p.socket())
	if err != nil {
		return err
	}
	p.server = grpc.NewServer()
	api.RegisterDevicePluginServer(p.server, p)
	go func(server *grpc.Server) { _ = server.Serve(listener) }(p.server)
	if err := p.register(); err != nil {
		return err
	}
	p.kubelet = kubelet
	log.Printf("stand-in registered for %s", p.resource)
	return nil
}

func (p *plugin) socket() string {
	return filepath.Join(api.DevicePluginPath, "stand-in-"+strings.ReplaceAll(p.resource, "/", "-")+".sock")
}

func (p *plugin) register() error {
	connection, err := grpc.NewClient("unix://"+api.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err = api.NewRegistrationClient(connection).Register(ctx, &api.RegisterRequest{
		Version: api.Version, Endpoint: filepath.Base(p.socket()), ResourceName: p.resource,
	})
	return err
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	var told []device
	for first := true; stream.Context().Err() == nil; time.Sleep(glance) {
		now, err := p.devices()
		if err != nil || (!first && reflect.DeepEqual(now, told)) {
			continue
		}
		answer := &api.ListAndWatchResponse{}
		for _, one := range now {
			health := api.Unhealthy
			if one.Healthy {
				health = api.Healthy
			}
			answer.Devices = append(answer.Devices, &api.Device{ID: one.UUID, Health: health})
		}
		if err := stream.Send(answer); err != nil {
			return err
		}
		told, first = now, false
	}
	return nil
}

func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	answer := &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		if len(container.DevicesIds) == 0 {
			return nil, fmt.Errorf("no device of %s was asked for", p.resource)
		}
		answer.ContainerResponses = append(answer.ContainerResponses, &api.ContainerAllocateResponse{Envs: map[string]string{
			"NVIDIA_VISIBLE_DEVICES":    strings.Join(container.DevicesIds, ","),
			"SLICELIFT_SLICE_SIMULATED": "1",
		}})
	}
	return answer, nil
}

func (p *plugin) GetPreferredAllocation(context.Context, *api.PreferredAllocationRequest) (*api.PreferredAllocationResponse, error) {
	return &api.PreferredAllocationResponse{}, nil
}

func (p *plugin) PreStartContainer(context.Context, *api.PreStartContainerRequest) (*api.PreStartContainerResponse, error) {
	return &api.PreStartContainerResponse{}, nil
}

// devices reads the file anew; one that is being written is no news.
func (p *plugin) devices() ([]device, error) {
	declared, err := read(p.file)
	var mine []device
	for _, one := range declared.Devices {
		if one.Resource == p.resource {
			mine = append(mine, one)
		}
	}
	return mine, err
}

func resources(file string) []string {
	declared, err := read(file)
	if err != nil {
		log.Printf("stand-in: %v", err)
	}
	var names []string
	seen := map[string]bool{}
	for _, one := range declared.Devices {
		if !seen[one.Resource] {
			seen[one.Resource] = true
			names = append(names, one.Resource)
		}
	}
	return names
}

func read(file string) (geometry, error) {
	var declared geometry
	content, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(content, &declared)
	}
	return declared, err
}
