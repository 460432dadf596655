//! Attributes of several inodes, asked of their shards at once.
//!
//! All questions of a round are sent before the first reply is awaited. A node is asked one question in a round, and
//! one more for each idle connection to it. A question that is not answered so (a connection breaks, the map is stale,
//! a session has ended) is asked again as any call is: it changes nothing.
//!
//! Invariant: nobody waits for a slot while it holds others, since two who do could wait for each other.
//! Cost: a round trip, and a round more where a node has more of the inodes than there are idle connections to it.

use super::{Answer, Calls, is_of_shard};
use crate::link::{Link, Slot};
use crate::notice::Notice;
use crate::shell::Shell;
use std::collections::BTreeSet;
use std::sync::Arc;
use weft_protocol::message::Message;
use weft_protocol::message::shard::{ShardCall, ShardRequest};
use weft_protocol::{Attributes, Credentials, Error, InodeNumber, NodeId, Result, ShardId, routing};

/// A question whose reply is on its way.
struct Question<S: Shell> {
    shard: ShardId,
    link: Arc<Link<S>>,
    slot: Slot<S::Control>,
    sent_ms: u64,
}

impl<S: Shell> Calls<S> {
    /// Attributes of each inode from its shard, in their order. Each may fail as [`Calls::ask_attributes`] does.
    pub(crate) async fn ask_all_attributes(
        &self,
        who: &Credentials,
        inodes: &[InodeNumber],
    ) -> Vec<Result<Attributes>> {
        let mut told: Vec<Option<Result<Attributes>>> = vec![None; inodes.len()];
        loop {
            let (mut nodes, mut asked, mut again) = (BTreeSet::new(), Vec::new(), Vec::new());
            for (index, inode) in inodes.iter().enumerate().filter(|(index, _)| told[*index].is_none()) {
                match self.start_asking(who, *inode, &mut nodes).await {
                    Ok(Some(question)) => asked.push((index, question)),
                    Ok(None) => {}
                    Err(_) => again.push(index),
                }
            }
            if asked.is_empty() {
                break;
            }
            for (index, question) in asked {
                match self.finish_asking(question).await {
                    Some(answer) => told[index] = Some(answer),
                    None => again.push(index),
                }
            }
            for index in again {
                told[index] = Some(self.ask_attributes(who, inodes[index]).await);
            }
        }
        let mut all = Vec::with_capacity(inodes.len());
        for (inode, told) in inodes.iter().zip(told) {
            all.push(match told {
                Some(told) => told,
                None => self.ask_attributes(who, *inode).await,
            });
        }
        all
    }

    /// Sends a question. `nodes`: those that were asked one in this round. `None`: it has to wait for a later round.
    async fn start_asking(
        &self,
        who: &Credentials,
        inode: InodeNumber,
        nodes: &mut BTreeSet<NodeId>,
    ) -> Result<Option<Question<S>>> {
        let (shard, map) = (routing::of_inode(inode), self.map());
        let link = self.link(map.node_of(shard).ok_or(Error::WrongShard(shard))?).await?;
        self.settle(&link).await?;
        let Some(mut slot) = link.take_slot_now(!nodes.contains(&link.node())).await else { return Ok(None) };
        self.shell.notice(Notice::ShardCall);
        slot.sequence += 1;
        let call = ShardCall {
            shard,
            epoch: map.epoch,
            slots_of: link.node(),
            slot: slot.index,
            sequence: slot.sequence,
            credentials: (!self.caller.is_fixed).then(|| who.clone()),
            request: ShardRequest::GetAttributes { inode },
            repeats: Vec::new(),
        };
        let sent_ms = self.shell.now_ms();
        if let Err(error) = link.start(&self.shell, &mut slot, &Message::Shard(call)).await {
            link.return_slot(slot).await;
            return Err(error);
        }
        nodes.insert(link.node());
        Ok(Some(Question { shard, link, slot, sent_ms }))
    }

    /// Awaits the answer. `None`: the shard gave none.
    async fn finish_asking(&self, question: Question<S>) -> Option<Result<Attributes>> {
        let Question { shard, link, mut slot, sent_ms } = question;
        let reply = link.finish(&mut slot).await;
        link.return_slot(slot).await;
        let Ok(Message::ShardReply(reply)) = reply else { return None };
        if !is_of_shard(&reply.result) {
            return None;
        }
        let (session, stamp, now_ms) = (link.session, reply.stamp, self.shell.now_ms());
        self.session.heard(shard, session, stamp, (sent_ms, now_ms));
        let (others, resent) = (reply.others, false);
        let answer = reply.result.map(|answer| Answer { stamp, answer, session, resent, now_ms, shard, others });
        Some(answer.and_then(|answer| self.attributes_of(answer)).map(|(attributes, _)| attributes))
    }
}
