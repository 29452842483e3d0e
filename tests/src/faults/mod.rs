//! What goes wrong: kills, races, outages, old and unreadable rows.

pub(crate) mod alarmed;
pub(crate) mod beside;
pub(crate) mod carried_out;
pub(crate) mod crashes;
pub(crate) mod healing;
pub(crate) mod identity;
pub(crate) mod kept_back;
pub(crate) mod races;
pub(crate) mod standing_still;
pub(crate) mod starts;
pub(crate) mod turns;
