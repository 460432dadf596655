//! Every answer against the model, at the moment at which its shard gives it.

use crate::model::Model;
use weft_protocol::message::shard::{ShardAnswer, ShardRequest};
use weft_protocol::{Cookie, Error, FileKind, InodeNumber, Name, Result, routing};

/// Applies what a change did, or compares what a read told. The text of what is wrong.
pub fn check(
    model: &mut Model,
    request: &ShardRequest,
    result: &Result<ShardAnswer>,
) -> std::result::Result<(), String> {
    if request.target().is_some_and(|target| !model.knows(target)) {
        return Ok(());
    }
    match result {
        Ok(answer) => check_answer(model, request, answer),
        Err(error) => check_error(model, request, error),
    }
}

fn expect(holds: bool, what: impl FnOnce() -> String) -> std::result::Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

fn check_answer(model: &mut Model, request: &ShardRequest, answer: &ShardAnswer) -> std::result::Result<(), String> {
    match (request, answer) {
        (ShardRequest::Lookup { parent, name }, answer) => {
            let told = match answer {
                ShardAnswer::Entry { attributes, .. } => Some(attributes.inode),
                ShardAnswer::RemoteDirectory { inode, .. } => Some(*inode),
                _ => None,
            };
            let known = model.entry(*parent, name);
            expect(told == known, || format!("lookup told {told:?}, the model has {known:?}"))
        }
        (ShardRequest::GetAttributes { inode }, ShardAnswer::Entry { attributes, .. }) => {
            let Some(known) = model.inodes.get(inode) else {
                if attributes.links == 0 {
                    // Somebody has it open, or was told of it within the last term.
                    return Ok(());
                }
                return Err(format!("attributes of {inode}, which the model does not have"));
            };
            // A directory is removed at its own shard before its name is.
            let is_going = attributes.links == 0 && known.kind == FileKind::Directory && known.entries.is_empty();
            let same = attributes.kind == known.kind
                && attributes.mode == known.mode
                && attributes.links == known.links
                && (known.kind != FileKind::Directory || attributes.size == known.size);
            expect(same || is_going, || format!("attributes {attributes:?}, the model has {known:?}"))
        }
        (ShardRequest::OpenAt { parent, name, flags, .. }, ShardAnswer::Opened { attributes, created, .. }) => {
            let known = model.entry(*parent, name);
            if flags.truncate && !created && model.was_cut_as(attributes.inode, *parent, name) {
                return Ok(());
            }
            if *created {
                expect(known.is_none(), || format!("made, but the model has {known:?}"))?;
                model.make(*parent, name, attributes.inode, FileKind::Regular, attributes.mode);
                return Ok(());
            }
            expect(known == Some(attributes.inode), || format!("opened {}, the model has {known:?}", attributes.inode))
        }
        (ShardRequest::MakeDirectory { parent, name, mode, .. }, ShardAnswer::Entry { attributes, .. }) => {
            let known = model.entry(*parent, name);
            expect(known.is_none(), || format!("made, but the model has {known:?}"))?;
            model.make(*parent, name, attributes.inode, FileKind::Directory, *mode);
            Ok(())
        }
        (ShardRequest::Unlink { parent, name }, ShardAnswer::Removed { inode, links, .. }) => {
            unlinked(model, *parent, name, (*inode, *links))
        }
        (ShardRequest::UnlinkBatch { parent, names }, ShardAnswer::RemovedBatch { removed, .. }) => {
            expect((1..=names.len()).contains(&removed.len()), || format!("{} of the names removed", removed.len()))?;
            names
                .iter()
                .zip(removed)
                .try_for_each(|(name, (inode, links))| unlinked(model, *parent, name, (*inode, *links)))
        }
        (ShardRequest::RemoveDirectory { parent, name }, ShardAnswer::Removed { inode, .. }) => {
            let entries = model.inodes.get(inode).map_or(0, |directory| directory.entries.len());
            expect(entries == 0, || format!("removed a directory with {entries} entries"))?;
            let taken = model.take(*parent, name);
            model.drop_link(*inode);
            expect(taken == Some(*inode), || format!("removed {inode}, the model had {taken:?}"))
        }
        (
            ShardRequest::Rename { parent, name, new_parent, new_name, .. },
            ShardAnswer::Renamed { inode, replaced, .. },
        ) => {
            if (parent, name) == (new_parent, new_name) {
                return Ok(());
            }
            let known = model.entry(*new_parent, new_name);
            let told = replaced.map(|(inode, _)| inode);
            expect(known == told, || format!("replaced {told:?}, the model had {known:?}"))?;
            if let Some(replaced) = known {
                model.take(*new_parent, new_name);
                model.drop_link(replaced);
            }
            let kind = model.inodes.get(inode).map_or(FileKind::Regular, |inode| inode.kind);
            let taken = model.take(*parent, name);
            expect(taken == Some(*inode), || format!("renamed {inode}, the model had {taken:?}"))?;
            model.put(*new_parent, new_name, *inode, kind);
            Ok(())
        }
        (ShardRequest::ReadDirectory { inode, .. }, ShardAnswer::Page(page)) => {
            let told: Vec<_> = page.entries.iter().map(|entry| (entry.name.clone(), entry.inode)).collect();
            let mut known: Vec<_> = model
                .inodes
                .get(inode)
                .map(|directory| directory.entries.iter().map(|(name, inode)| (name.clone(), *inode)).collect())
                .unwrap_or_default();
            known.sort_by_key(|(name, _)| Cookie::of(name));
            expect(told == known, || format!("listed {told:?}, the model has {known:?}"))
        }
        _ => Ok(()),
    }
}

fn unlinked(
    model: &mut Model,
    parent: InodeNumber,
    name: &Name,
    (inode, links): (InodeNumber, u32),
) -> std::result::Result<(), String> {
    let taken = model.take(parent, name);
    expect(taken == Some(inode), || format!("removed {inode}, the model had {taken:?}"))?;
    let left = model.drop_link(inode);
    expect(left == links, || format!("{links} links told, the model has {left}"))
}

/// A refusal has to have its reason in the model.
fn check_error(model: &Model, request: &ShardRequest, error: &Error) -> std::result::Result<(), String> {
    let entry = match request {
        ShardRequest::OpenAt { parent, name, .. }
        | ShardRequest::MakeDirectory { parent, name, .. }
        | ShardRequest::Unlink { parent, name }
        | ShardRequest::RemoveDirectory { parent, name } => model.entry(*parent, name),
        ShardRequest::UnlinkBatch { parent, names } => names.first().and_then(|name| model.entry(*parent, name)),
        _ => return check_stale(model, request, error),
    };
    let kind = entry.and_then(|inode| model.inodes.get(&inode)).map(|inode| inode.kind);
    let lost = entry.is_some_and(|inode| !model.knows(inode));
    let explained = match error {
        Error::NotFound => entry.is_none(),
        Error::Exists => entry.is_some(),
        Error::IsDirectory => kind == Some(FileKind::Directory),
        Error::NotDirectory => kind == Some(FileKind::Regular),
        // A directory on another shard was looked into before the answer came back from there.
        Error::NotEmpty
            if entry.is_some_and(|inode| routing::of_request(request) != Some(routing::of_inode(inode))) =>
        {
            true
        }
        Error::NotEmpty => {
            entry.and_then(|inode| model.inodes.get(&inode)).is_some_and(|inode| !inode.entries.is_empty())
        }
        // The other shard is gone, or cut off.
        Error::Unreachable => !model.lost.is_empty() || model.split_ms.is_some(),
        Error::WrongShard(_) => !model.lost.is_empty(),
        _ => return check_stale(model, request, error),
    };
    expect(explained || lost, || format!("{error:?}, but the model has {entry:?} ({kind:?})"))
}

/// An inode may be called stale when it is gone, or while its removal waits for the shard of its name.
fn check_stale(model: &Model, request: &ShardRequest, error: &Error) -> std::result::Result<(), String> {
    let gone = |inode: InodeNumber| model.inodes.get(&inode).is_none_or(|inode| inode.entries.is_empty());
    let other = match request {
        ShardRequest::Rename { new_parent, .. } => gone(*new_parent),
        _ => false,
    };
    match error {
        Error::Stale => {
            expect(request.target().is_some_and(gone) || other, || "called stale, but it is there".to_owned())
        }
        _ => Ok(()),
    }
}
