//! Text for people: peers, and bounded strings.

use weft_protocol::handshake::KeyName;
use weft_transport::Peer;

/// Describes a peer, for `weft debug stuck`.
pub fn peer_text(peer: &Peer) -> String {
    let who = match &peer.key_name {
        KeyName::Node(node) => format!("node {node}"),
        KeyName::Owner => "owner".to_owned(),
        KeyName::User { credentials, .. } => format!("uid {}", credentials.uid),
    };
    format!("{who}, session {}", peer.session)
}

/// Truncates a text to at most `bytes_max` bytes, at a character boundary.
pub fn cut(text: &mut String, bytes_max: usize) {
    if text.len() > bytes_max {
        let end = (0..=bytes_max).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
    }
}
