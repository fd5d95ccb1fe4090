//! A route: where a prefix leads to, how much it is preferred, and who owns it.

use crate::nexthop::NextHopId;

/// One route of a prefix. A prefix may have several; the one with the lowest `priority` is used for forwarding, the
/// others wait behind it in order and take over when it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// Where packets go.
    pub next_hop: NextHopId,
    /// Preference; the *lower* value wins, as a metric does.
    pub priority: u32,
    /// The caller's tag for who installed the route (a protocol, a session); see `begin_refresh`.
    pub owner: u32,
}

impl Route {
    /// A route of priority 0 and owner 0.
    pub const fn new(next_hop: NextHopId) -> Self {
        Route { next_hop, priority: 0, owner: 0 }
    }

    /// The same route with another priority.
    pub const fn with_priority(self, priority: u32) -> Self {
        Route { priority, ..self }
    }

    /// The same route with another owner tag.
    pub const fn with_owner(self, owner: u32) -> Self {
        Route { owner, ..self }
    }
}

impl From<NextHopId> for Route {
    fn from(next_hop: NextHopId) -> Self {
        Route::new(next_hop)
    }
}

/// Which route of a prefix a removal means: the first in order that fits all the given fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteMatch {
    /// Only a route to this next hop.
    pub next_hop: Option<NextHopId>,
    /// Only a route of this priority.
    pub priority: Option<u32>,
    /// Only a route of this owner.
    pub owner: Option<u32>,
}

impl RouteMatch {
    /// Fits every route, so the winning one is meant.
    pub const ANY: RouteMatch = RouteMatch { next_hop: None, priority: None, owner: None };

    /// Whether `route` has all the given fields.
    pub fn fits(&self, route: &Route) -> bool {
        self.next_hop.is_none_or(|next_hop| next_hop == route.next_hop)
            && self.priority.is_none_or(|priority| priority == route.priority)
            && self.owner.is_none_or(|owner| owner == route.owner)
    }
}
