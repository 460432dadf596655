//! Every answer against the model, at the moment at which its shard gives it.

use crate::model::Model;
use weft_protocol::message::shard::{RenameMode, ShardAnswer, ShardRequest};
use weft_protocol::{Cookie, Error, FileKind, InodeNumber, Name, Result, routing};

/// Applies what a change did, or compares what a read told. `since_ms`: when the call was received first. The text of
/// what is wrong.
pub fn check(
    model: &mut Model,
    request: &ShardRequest,
    result: &Result<ShardAnswer>,
    since_ms: u64,
) -> std::result::Result<(), String> {
    if request.target().is_some_and(|target| !model.knows(target)) {
        return Ok(());
    }
    match result {
        Ok(answer) if is_of_file_that_it_cut(model, request, answer, since_ms) => Ok(()),
        Ok(answer) => check_answer(model, request, answer),
        Err(error) => check_error(model, request, error),
    }
}

/// The inodes of which a change is told that has changed something. `None`: it has not.
pub fn changed(request: &ShardRequest, answer: &ShardAnswer) -> Option<Vec<InodeNumber>> {
    match (request, answer) {
        (
            ShardRequest::OpenAt { flags, .. } | ShardRequest::Open { flags, .. },
            ShardAnswer::Opened { attributes, created, .. },
        ) => (*created || flags.truncate).then(|| vec![attributes.inode]),
        (ShardRequest::OpenAt { .. } | ShardRequest::Open { .. }, _) => None,
        (_, ShardAnswer::Entry { attributes, .. }) => Some(vec![attributes.inode]),
        (_, ShardAnswer::Removed { inode, .. } | ShardAnswer::Renamed { inode, .. }) => Some(vec![*inode]),
        (_, ShardAnswer::RemovedBatch { removed, .. }) => Some(removed.iter().map(|(inode, _)| *inode).collect()),
        _ => None,
    }
}

/// Whether an open has cut the file, and keeps to it though another one, or none, has the name by now.
fn is_of_file_that_it_cut(model: &Model, request: &ShardRequest, answer: &ShardAnswer, since_ms: u64) -> bool {
    match (request, answer) {
        (ShardRequest::OpenAt { parent, name, flags, .. }, ShardAnswer::Opened { attributes, created, .. }) => {
            flags.truncate && !created && model.was_cut_as(attributes.inode, *parent, name, since_ms)
        }
        _ => false,
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
                ShardAnswer::Remote { inode, .. } => Some(*inode),
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
        (ShardRequest::OpenAt { parent, name, .. }, ShardAnswer::Opened { attributes, created, .. }) => {
            let known = model.entry(*parent, name);
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
        (ShardRequest::Link { inode, parent, name }, ShardAnswer::Entry { attributes, .. }) => {
            let known = model.entry(*parent, name);
            expect(known.is_none(), || format!("linked, but the model has {known:?}"))?;
            model.put(*parent, name, *inode, attributes.kind);
            let links = model.inodes.get_mut(inode).map(|linked| {
                linked.links += 1;
                linked.links
            });
            expect(links == Some(attributes.links), || format!("{} links, the model has {links:?}", attributes.links))
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
            let entries = model.entries(*inode).count();
            expect(entries == 0, || format!("removed a directory with {entries} entries"))?;
            let taken = model.take(*parent, name);
            model.drop_link(*inode);
            expect(taken == Some(*inode), || format!("removed {inode}, the model had {taken:?}"))
        }
        (
            ShardRequest::Rename { parent, name, new_parent, new_name, mode, .. },
            ShardAnswer::Renamed { inode, replaced, exchanged, .. },
        ) => {
            let others = (replaced.map(|(inode, _)| inode), exchanged.map(|(inode, _)| inode));
            renamed(model, ((*parent, name), (*new_parent, new_name)), *mode, *inode, others)
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
        (ShardRequest::SetAttributes { inode, changes }, _) => {
            if let Some(mode) = changes.mode {
                model.change_mode(*inode, mode);
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The names that a change is about.
fn names(request: &ShardRequest) -> Vec<(InodeNumber, &Name)> {
    match request {
        ShardRequest::Rename { parent, name, new_parent, new_name, .. } => {
            vec![(*parent, name), (*new_parent, new_name)]
        }
        ShardRequest::OpenAt { parent, name, .. }
        | ShardRequest::MakeDirectory { parent, name, .. }
        | ShardRequest::Unlink { parent, name }
        | ShardRequest::RemoveDirectory { parent, name } => vec![(*parent, name)],
        ShardRequest::UnlinkBatch { parent, names } => names.first().map(|name| (*parent, name)).into_iter().collect(),
        _ => Vec::new(),
    }
}

/// What a rename of an inode told, and which one it has replaced, or exchanged.
fn renamed(
    model: &mut Model,
    ((parent, name), (new_parent, new_name)): ((InodeNumber, &Name), (InodeNumber, &Name)),
    mode: RenameMode,
    inode: InodeNumber,
    (replaced, exchanged): (Option<InodeNumber>, Option<InodeNumber>),
) -> std::result::Result<(), String> {
    let known = model.entry(new_parent, new_name);
    if known == Some(inode) && model.entry(parent, name) == known {
        // Both names of one inode: nothing happens.
        return expect(mode != RenameMode::NoReplace, || "renamed to a name that is there".to_owned());
    }
    if mode == RenameMode::Exchange {
        expect(known.is_some() && known == exchanged, || format!("exchanged {exchanged:?}, the model had {known:?}"))?;
        let taken = (model.take(parent, name), model.take(new_parent, new_name));
        expect(taken == (Some(inode), exchanged), || format!("exchanged {inode} and {exchanged:?}, not {taken:?}"))?;
        for (place, inode) in [((new_parent, new_name), inode), ((parent, name), known.unwrap_or(inode))] {
            let kind = model.inodes.get(&inode).map_or(FileKind::Regular, |inode| inode.kind);
            model.put(place.0, place.1, inode, kind);
        }
        check_no_cycle(model, inode)?;
        return exchanged.map_or(Ok(()), |exchanged| check_no_cycle(model, exchanged));
    }
    expect(known == replaced, || format!("replaced {replaced:?}, the model had {known:?}"))?;
    if let Some(replaced) = known {
        model.take(new_parent, new_name);
        model.drop_link(replaced);
    }
    let kind = model.inodes.get(&inode).map_or(FileKind::Regular, |inode| inode.kind);
    let taken = model.take(parent, name);
    expect(taken == Some(inode), || format!("renamed {inode}, the model had {taken:?}"))?;
    model.put(new_parent, new_name, inode, kind);
    check_no_cycle(model, inode)
}

/// A directory that was moved is not below itself.
fn check_no_cycle(model: &Model, moved: InodeNumber) -> std::result::Result<(), String> {
    let mut below = vec![moved];
    let mut seen = std::collections::BTreeSet::new();
    while let Some(inode) = below.pop() {
        let is_directory =
            |entry: &InodeNumber| model.inodes.get(entry).is_some_and(|it| it.kind == FileKind::Directory);
        for entry in model.entries(inode).filter(is_directory) {
            expect(entry != moved, || format!("directory {moved} is below itself"))?;
            if seen.insert(entry) {
                below.push(entry);
            }
        }
    }
    Ok(())
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

/// Whether the request cuts a file by its name.
fn truncates(request: &ShardRequest) -> bool {
    matches!(request, ShardRequest::OpenAt { flags, .. } if flags.truncate)
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
        Error::NotEmpty => entry.is_some_and(|inode| model.entries(inode).next().is_some()),
        Error::Split => names(request).into_iter().any(|(parent, name)| model.is_elsewhere(parent, name)),
        // The other shard is gone, or cut off.
        Error::Unreachable if !model.lost.is_empty() || model.split_ms.is_some() => true,
        // Its storage server is gone, and others have the file open.
        Error::Unreachable => model.store_gone && truncates(request),
        Error::WrongShard(_) => !model.lost.is_empty(),
        _ => return check_stale(model, request, error),
    };
    expect(explained || lost, || format!("{error:?}, but the model has {entry:?} ({kind:?})"))
}

/// A rename or link is refused for what its names are, and never because they are at different shards.
fn check_two_names(model: &Model, request: &ShardRequest, error: &Error) -> std::result::Result<(), String> {
    let (source, target, mode) = match request {
        ShardRequest::Rename { parent, name, new_parent, new_name, mode, .. } => {
            (model.entry(*parent, name), model.entry(*new_parent, new_name), *mode)
        }
        ShardRequest::Link { inode, parent, name } => (Some(*inode), model.entry(*parent, name), RenameMode::NoReplace),
        _ => return Ok(()),
    };
    let kind = |inode: Option<InodeNumber>| inode.and_then(|inode| model.inodes.get(&inode)).map(|inode| inode.kind);
    let is_lost = |inode: Option<InodeNumber>| inode.is_some_and(|inode| !model.knows(inode));
    let moves_directory = [kind(source), kind(target)].contains(&Some(FileKind::Directory));
    let explained = match error {
        Error::NotFound => kind(source).is_none() || target.is_none(),
        Error::Exists => target.is_some() && mode == RenameMode::NoReplace,
        Error::CrossShard => false,
        Error::Invalid | Error::NotEmpty => moves_directory,
        // A removed directory may be open.
        Error::NotPermitted => moves_directory || kind(source).is_none(),
        Error::IsDirectory | Error::NotDirectory => moves_directory,
        _ => true,
    };
    let what =
        || format!("{error:?}, but the model has {source:?} ({:?}) and {target:?} ({:?})", kind(source), kind(target));
    expect(explained || is_lost(source) || is_lost(target), what)
}

/// An inode may be called stale when it is gone, or while its removal waits for the shard of its name.
fn check_stale(model: &Model, request: &ShardRequest, error: &Error) -> std::result::Result<(), String> {
    check_two_names(model, request, error)?;
    let gone = |inode: InodeNumber| model.inodes.get(&inode).is_none_or(|inode| inode.entries.is_empty());
    let other = match request {
        ShardRequest::Rename { new_parent, .. } => gone(*new_parent),
        ShardRequest::Link { inode, .. } => !model.inodes.contains_key(inode),
        _ => false,
    };
    match error {
        Error::Stale => {
            expect(request.target().is_some_and(gone) || other, || "called stale, but it is there".to_owned())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_protocol::message::shard::{Access, OpenFlags, PageCache};

    #[test]
    fn an_open_is_unreachable_for_a_node_that_is_gone_only_if_it_cuts() {
        let (name, inode) = (Name::new(b"f").expect("a name"), InodeNumber::from_raw(7));
        let mut model = Model::new();
        model.make(InodeNumber::ROOT, &name, inode, FileKind::Regular, 0o644);
        let mut refused = |truncate, store_gone| {
            model.store_gone = store_gone;
            let flags =
                OpenFlags { access: Access::Write, truncate, direct: false, page_cache: PageCache::None, group: None };
            let request = ShardRequest::OpenAt {
                parent: InodeNumber::ROOT,
                name: name.clone(),
                flags,
                create: None,
                objects: None,
            };
            check(&mut model, &request, &Err(Error::Unreachable), 0).is_err()
        };
        assert!(!refused(true, true));
        assert!(refused(true, false) && refused(false, true) && refused(false, false));
    }
}
