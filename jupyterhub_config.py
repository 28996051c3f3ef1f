"""The hub, as `slicelift up` starts it. The values are explained in hub/slicelift_hub/config.py.

Sessions are processes of this machine, or with SLICELIFT_SESSIONS=pods pods of a cluster (docs/cluster.md).

Settings of your own, such as another authenticator, go to $SLICELIFT_HOME/jupyterhub_config.py, which is read last.
"""

from slicelift_hub import config

c = get_config()  # noqa: F821 - JupyterHub's, like load_subconfig below

config.hold()
state = config.hub_folder()

# everything on loopback; for other hosts put a web server with TLS in front (docs/hub.md)
c.JupyterHub.bind_url = config.public_url()
c.JupyterHub.hub_bind_url = f"http://{config.inner_address()}:{config.inner_port('hub')}"
c.JupyterHub.db_url = f"sqlite:///{state / 'jupyterhub.sqlite'}"
c.JupyterHub.cookie_secret_file = str(state / "cookie_secret")
c.JupyterHub.pid_file = str(state / "hub.pid")

# npm's proxy: it streams, which the Python port of the same name does not
c.ConfigurableHTTPProxy.command = config.proxy_command(c.JupyterHub.hub_bind_url)
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{config.inner_port('proxy')}"
c.ConfigurableHTTPProxy.pid_file = str(state / "proxy.pid")
c.ConfigurableHTTPProxy.check_running_interval = 2

# a restarted hub finds the sessions that run
c.JupyterHub.cleanup_servers = False

# people: `slicelift hub add-user NAME`
c.JupyterHub.authenticator_class = "slicelift_hub.authenticator.LocalAccounts"
c.JupyterHub.template_paths = config.templates()
c.JupyterHub.template_vars = config.template_vars()

# sessions
c.JupyterHub.spawner_class = config.spawner_class()
c.ProfiledSpawner.launcher_url = config.launcher_url()
c.LocalSliceSpawner.demo = config.demo()
c.Spawner.poll_interval = 5  # the port of one that died is soon another's
c.Spawner.start_timeout = 120
c.Spawner.http_timeout = 120
c.KubeSpawner.start_timeout = 600  # a node may have to fetch the image first

# the launcher, and who ends idle sessions; a session's own token opens the launcher
c.JupyterHub.services = config.services()
c.JupyterHub.load_roles = config.roles()

if config.own_file().is_file():
    load_subconfig(str(config.own_file()))  # noqa: F821
